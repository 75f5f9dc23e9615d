"""Fixtures of the command-line tests: `dllm` in this process, `spawn` as a process of its own, small model folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dllm_core import hookimpl, plugins
from dllm_core.cli.main import main
from dllm_core.testing.random_model import save_random_checkpoint

COMMAND = [sys.executable, "-m", "dllm_core.cli.main"]
CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n"]
SPECIAL = ["<|endoftext|>", "<|eot_id|>", "<|mdm_mask|>"]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<|eot_id|>{% endfor %}[assistant]"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


def clean_environment() -> dict[str, str]:
    """The environment without anything that changes the command line's behaviour, on the reference backend."""
    unwanted = ("DLLM_", "_DLLM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    return {**kept, "DLLM_BACKEND": "numpy", "DLLM_THREADS": "1", "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = clean_environment()
    for key in set(os.environ) - set(clean) - {"PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(key)
    for key, value in clean.items():
        monkeypatch.setenv(key, value)


@pytest.fixture
def dllm(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`dllm(*arguments)` in this process."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(a) for a in arguments])
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def spawn() -> Callable[..., Result]:
    """`spawn(*arguments, stdin=..., env=...)` as a process of its own."""

    def run(*arguments: object, stdin: Any = subprocess.DEVNULL, text: str | None = None, **env: str) -> Result:
        source = {"input": text} if text is not None else {"stdin": stdin}
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            env={**clean_environment(), **env},
            **source,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`install(name, dllm_register_backends=function, ...)`: one more plugin, beside those that are installed."""
    points = list(plugins.entry_points(group="dllm"))
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)

    def add(name: str, **hooks: Callable[..., None]) -> None:
        module = types.ModuleType(f"plugin_{name}")
        for hook, function in hooks.items():
            setattr(module, hook, hookimpl(function, specname=hook))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        points.append(EntryPoint(name, module.__name__, "dllm"))

    return add


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaDA without a tokenizer: 131 ids, mask 130, EOS 129, 64 positions."""
    return save_random_checkpoint(tmp_path_factory.mktemp("random") / "model", max_length=64)


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaDA whose tokenizer has one token a character, with a chat template."""
    return with_tokenizer(tmp_path_factory.mktemp("spoken") / "model", TEMPLATE)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without a chat template."""
    return with_tokenizer(tmp_path_factory.mktemp("base") / "model", None)


def with_tokenizer(path: Path, template: str | None, **settings: Any) -> Path:
    vocabulary = CHARACTERS + SPECIAL
    save_random_checkpoint(path, vocab=len(vocabulary), max_length=160)
    core = Tokenizer(models.WordLevel({c: i for i, c in enumerate(vocabulary)}, unk_token=" "))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    core.save(str(path / "tokenizer.json"))
    given = {"eos_token": SPECIAL[0], "mask_token": SPECIAL[2], "chat_template": template, **settings}
    (path / "tokenizer_config.json").write_text(json.dumps(given))
    edit_config(path, eos_token_id=len(CHARACTERS), pad_token_id=len(CHARACTERS))
    return path


def edit_config(path: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def assert_refused(result: Result, code: int, *words: str) -> None:
    """The contract of every error: exit code, one line that names the matter, at most one hint, no output."""
    assert result.code == code, result
    assert result.out == ""
    lines = result.err.splitlines()
    assert 1 <= len(lines) <= 2, result.err
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
