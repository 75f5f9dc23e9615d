"""When standard input is read, and when it is left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dllm_core.cli import text as prompts

from .conftest import Result, assert_refused

Dllm = Callable[..., Result]


def text_of(result: Result) -> str:
    assert result.code == 0, result.err
    return result.json["text"]


def test_pipe_comes_before_the_prompt(spawn: Dllm, base: Path) -> None:
    assert text_of(spawn("tokenize", "-m", base, "question?", "--json", text="notes\n")) == "notes\n\nquestion?"


def test_pipe_alone(spawn: Dllm, base: Path) -> None:
    assert text_of(spawn("tokenize", "-m", base, "--json", text="line 1\nline 2\n")) == "line 1\nline 2"
    assert text_of(spawn("tokenize", "-m", base, "-", "--json", text="notes\n")) == "notes"


def test_regular_file(spawn: Dllm, base: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"\xef\xbb\xbfnotes\r\n")
    with (tmp_path / "notes").open("rb") as file:
        assert text_of(spawn("tokenize", "-m", base, "q", "--json", stdin=file)) == "notes\n\nq"


def test_empty_pipe_changes_nothing(spawn: Dllm, base: Path) -> None:
    assert text_of(spawn("tokenize", "-m", base, "q", "--json", text="")) == "q"
    assert_refused(spawn("tokenize", "-m", base, "-", text=" \n"), 2, "empty")


def test_no_stdin(spawn: Dllm, base: Path) -> None:
    assert text_of(spawn("tokenize", "-m", base, "q", "--no-stdin", "--json", text="notes")) == "q"


def test_ids_leave_a_pipe_alone(spawn: Dllm, base: Path) -> None:
    assert spawn("tokenize", "-m", base, "--prompt-ids", "40", "--json", text="notes").json["ids"] == [40]


def test_device_is_not_read(spawn: Dllm, base: Path) -> None:
    with open("/dev/zero", "rb") as endless:
        assert text_of(spawn("tokenize", "-m", base, "q", "--json", stdin=endless)) == "q"


def test_open_socket_is_not_read(spawn: Dllm, base: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:  # nobody ever writes or closes: reading would hang
        assert text_of(spawn("tokenize", "-m", base, "q", "--json", stdin=theirs)) == "q"


def test_bytes_that_are_no_text(spawn: Dllm, base: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dllm_core.cli.main", "tokenize", "-m", str(base), "-"],
        input=b"ok \xff",
        capture_output=True,
        timeout=120,
    )
    assert_refused(Result(done.returncode, done.stdout.decode(), done.stderr.decode()), 2, "UTF-8", "byte at 3")


@pytest.mark.parametrize("quiet", [False, True])
def test_silent_pipe_gets_one_hint(dllm: Dllm, base: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    """The writer answers only after the hint's time: the hint is said once, and the text still arrives."""
    said = threading.Event()
    timer = threading.Timer
    monkeypatch.setattr(prompts, "PATIENCE_S", 0.01)

    def watched(seconds: float, function: Callable[..., None], arguments: list[str]) -> threading.Timer:
        def speak(*words: str) -> None:
            function(*words)
            said.set()

        return timer(seconds, speak, arguments)

    monkeypatch.setattr(prompts.threading, "Timer", watched)
    reader, writer = os.pipe()

    def answer() -> None:
        said.wait(60)
        os.write(writer, b"late")
        os.close(writer)

    thread = threading.Thread(target=answer)
    thread.start()
    with os.fdopen(reader) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        result = dllm("tokenize", "-m", base, "q", "--json", *(["--quiet"] if quiet else []))
    thread.join()
    assert text_of(result) == "late\n\nq"
    hints = [] if quiet else ["hint: waiting for text on standard input (--no-stdin leaves it alone)"]
    assert result.err.splitlines() == hints
