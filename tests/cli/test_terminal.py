"""Terminals, pipes and colours: the view never smears, the answer stays once, a pipe gets plain text."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pexpect
import pytest

from dllm_core import load

from .conftest import COMMAND, Result, clean_environment
from .terminal_emulator import Screen

Dllm = Callable[..., Result]
COLOR = re.compile(r"\x1b\[[\d;]*\b(3\d|4\d|9\d|38|48)\b[\d;]*m")
TITLE = re.compile(r"step (\d+)/(\d+)  block (\d+)/(\d+)  \+(\d+)  (\d+) masks? left  \d+ ms")


def hear_interrupts() -> None:
    """In the child: a job started in the background inherits that interrupts are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(columns: int, rows: int, *arguments: object, shell: str = "", **env: str) -> tuple[int, str]:
    """(exit code, everything written) of a run on a terminal of that size; `shell` is appended, e.g. a redirection."""
    words = [*COMMAND, *map(str, arguments)]
    command = ["/bin/sh", "-c", '"$@"' + shell, "sh", *words] if shell else words
    child = pexpect.spawn(
        command[0],
        command[1:],
        dimensions=(rows, columns),
        encoding="utf-8",
        timeout=120,
        env={**clean_environment(), **env},  # type: ignore[arg-type]
    )
    output = child.read()
    child.close()
    return child.exitstatus, output


@pytest.mark.parametrize("columns", [80, 40, 23])
def test_view_leaves_the_answer_once(dllm: Dllm, spoken: Path, columns: int) -> None:
    decoding = ["run", "-m", spoken, "tell me", "-n", 96, "--steps", 12, "--block-length", 48]
    answer = dllm(*decoding).out
    code, output = on_terminal(columns, 24, *decoding, "--visual", "--pace", "0.01")
    assert code == 0
    screen = Screen(columns).feed(output)
    written = Screen(columns).feed(answer.replace("\n", "\r\n"))
    assert screen.lines == written.lines
    assert screen.wrapped == written.wrapped  # no frame ran over the edge, only the answer may
    assert screen.cursor_visible
    if columns > 60:
        found = [tuple(map(int, m.groups())) for m in TITLE.finditer(output)]
        assert [f[0] for f in found] == [*range(1, 13), 12]  # --pace shows every step, closing the last again
        engine = load(str(spoken), backend="numpy")
        options = engine.options(max_tokens=96, steps=12, block_length=48)
        steps = engine.stream([engine.encode("tell me")], options)
        masks = [int((step.canvas[0] == engine.model.facts.mask_id).sum()) for step in steps]
        assert masks[0] == 88
        assert [f[5] for f in found] == [*masks, masks[-1]]
        assert {f[2] for f in found} == {1, 2}


def test_view_of_a_long_canvas_stays_inside_the_window(spoken: Path) -> None:
    _, output = on_terminal(20, 6, "run", "-m", spoken, "x", "-n", 140, "--steps", 5, "--visual", "--pace", "0.01")
    ups = re.findall(r"(?:\x1b\[1A\x1b\[2K)+", output)
    assert ups
    assert max(u.count("\x1b[1A") for u in ups) < 6


def test_view_styles(spoken: Path) -> None:
    arguments = ["run", "-m", spoken, "x", "-n", 32, "--steps", 8, "--visual", "--pace", "0.01"]
    colored = on_terminal(80, 24, *arguments)[1]
    assert COLOR.search(colored)
    assert "░" in colored
    plain = on_terminal(80, 24, *arguments, "--color", "never")[1]
    assert not re.search(r"\x1b\[[\d;]*m", plain)
    assert not COLOR.search(on_terminal(80, 24, *arguments, NO_COLOR="1")[1])
    assert not COLOR.search(on_terminal(80, 24, *arguments, NO_COLOR="1", FORCE_COLOR="1")[1])
    ascii_only = on_terminal(80, 24, *arguments, PYTHONIOENCODING="ascii")[1]
    assert ascii_only.isascii()
    assert "____" in ascii_only


def test_view_moves_to_the_stream_that_is_a_terminal(spoken: Path, tmp_path: Path) -> None:
    arguments = ["run", "-m", spoken, "x", "-n", 32, "--steps", 8, "--visual", "--pace", "0.01"]
    _, both = on_terminal(80, 24, *arguments)
    _, on_stderr = on_terminal(80, 24, *arguments, shell=f" >{tmp_path}/out")
    _, on_stdout = on_terminal(80, 24, *arguments, shell=f" 2>{tmp_path}/err")
    answer = (tmp_path / "out").read_text()
    assert Screen(80).feed(on_stderr).lines == []
    assert "░" in on_stderr
    assert "\x1b" not in answer
    assert (tmp_path / "err").read_text() == ""
    assert Screen(80).feed(on_stdout).lines == Screen(80).feed(both).lines
    assert Screen(80).feed(both).lines == Screen(80).feed(answer.replace("\n", "\r\n")).lines
    _, with_json = on_terminal(80, 24, *arguments, "--json", shell=f" 2>{tmp_path}/err2")
    assert with_json.startswith('{"schema"')
    assert TITLE.search((tmp_path / "err2").read_text())


def test_view_without_terminal_is_plain_lines(dllm: Dllm, spoken: Path) -> None:
    decoding = ["run", "-m", spoken, "x", "-n", 32, "--steps", 8, "--block-length", 16]
    result = dllm(*decoding, "--visual")
    assert result.out == dllm(*decoding).out
    lines = result.err.splitlines()
    assert len(lines) == 8
    assert all(TITLE.match(line) for line in lines)
    assert "\x1b" not in result.err
    assert lines[0].count("_") >= 28


def test_view_on_a_terminal_that_cannot_redraw(spoken: Path) -> None:
    _, output = on_terminal(80, 24, "run", "-m", spoken, "x", "-n", 16, "--visual", TERM="dumb")
    assert "\x1b" not in output
    assert len(TITLE.findall(output)) == 16


def test_interrupted_view_gives_the_terminal_back(spoken: Path) -> None:
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], "run", "-m", str(spoken), "x", "--visual", "--pace", "9"],
        encoding="utf-8",
        timeout=60,
        env=clean_environment(),  # type: ignore[arg-type]
        preexec_fn=hear_interrupts,
    )
    child.expect("step 1/128")
    shown = child.before + child.after
    child.sendintr()
    shown += child.read()
    child.close()
    assert child.exitstatus == 130
    assert "Traceback" not in shown
    screen = Screen(80).feed(shown)
    assert screen.cursor_visible
    assert [line for line in screen.lines if line.strip("^C")] == []


def test_frames_are_capped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that follow faster than a frame lasts are drawn together, and none of their commits is lost."""
    from dllm_core.cli.visual import LiveView

    clock = [0.0]
    monkeypatch.setattr("dllm_core.cli.visual.time.monotonic", lambda: clock[0])
    drawn: list[set[int]] = []

    class Counting(LiveView):
        def _draw(self, step: object) -> None:
            drawn.append(set(self.changed.new))
            self.changed.clear()
            self.drawn_at = clock[0]

    class Step:
        def __init__(self, position: int) -> None:
            self.position = np.array([position])
            self.revoked = [np.array([], np.int64)]

    view = Counting(None, None, None, 0.0)  # type: ignore[arg-type]
    for i in range(40):
        clock[0] = 1.0 + i * 0.03
        view.show(Step(i))  # type: ignore[arg-type]
    assert len(drawn) == 10  # 40 steps of 0.03 s, a frame at the first and then every fourth
    assert drawn[1] == {1, 2, 3, 4}


def test_colour_of_messages(spawn: Dllm) -> None:
    assert "\x1b" not in spawn("run", "-m", "tinny", "x").err
    assert spawn("run", "-m", "tinny", "x", "--color", "always").err.startswith("\x1b[")
    assert spawn("run", "-m", "tinny", "x", FORCE_COLOR="1").err.startswith("\x1b[")
    assert "\x1b" not in spawn("run", "-m", "tinny", "x", FORCE_COLOR="1", NO_COLOR="1").err
    assert "\x1b[31m" in on_terminal(80, 24, "run", "-m", "tinny", "x")[1]
    assert "\x1b" not in on_terminal(80, 24, "run", "-m", "tinny", "x", NO_COLOR="1")[1]


@pytest.mark.parametrize("arguments", [["backends"], ["plugins"], ["--help"], ["backends", "--json"]])
def test_pipes_get_plain_text(spawn: Dllm, arguments: list[str]) -> None:
    result = spawn(*arguments)
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    assert result.out.endswith("\n")
    assert not any(line != line.rstrip() for line in result.out.splitlines())
    if "--json" not in arguments and arguments != ["--help"]:
        assert "\x1b[" in spawn(*arguments, "--color", "always").out


@pytest.mark.parametrize("columns", [40, 80])
def test_tables_fit_the_terminal(columns: int) -> None:
    for verb in ("backends", "plugins"):
        code, output = on_terminal(columns, 60, verb)
        assert code == 0
        lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
        assert all(len(line) <= columns or "does not run" in line for line in lines)


@pytest.mark.parametrize("arguments", [["--help"], ["backends"], ["run", "--help"]])
def test_closed_pipe_is_quiet(arguments: list[str]) -> None:
    child = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(), text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()  # as head does when it has enough
    error = child.stderr.read()
    child.stderr.close()
    assert child.wait(120) == 1
    assert error == ""


def test_full_disk_is_reported(spoken: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "run", "-m", str(spoken), "x", "-n", "8"],
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=clean_environment(),
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (4, "error: no space left on device\n")


def test_interrupt(base: Path) -> None:
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], "run", "-m", str(base), "-"],
        encoding="utf-8",
        timeout=60,
        env=clean_environment(),  # type: ignore[arg-type]
        preexec_fn=hear_interrupts,
    )
    child.expect("reading the prompt from the terminal")
    child.sendintr()
    rest = child.read()
    child.close()
    assert child.exitstatus == 130
    assert "Traceback" not in rest
    assert "error" not in rest
