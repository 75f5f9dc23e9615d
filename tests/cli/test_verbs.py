"""backends, check, inspect, tokenize, logits, plugins, completion."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend
from safetensors.numpy import load_file

import dllm_core
from dllm_core import load
from dllm_core.errors import BackendUnavailable
from dllm_core.quant import SCHEMES
from dllm_core.testing.check import CheckRow

from .conftest import CHARACTERS, Result

Dllm = Callable[..., Result]


# ---- backends ----


def test_backends_json(dllm: Dllm) -> None:
    found = {entry["name"]: entry for entry in dllm("backends", "--json").json["backends"]}
    assert set(found) == {"numpy", "numba-int8", "cffi-simd", "torch"}
    neighbour = found.pop("torch")  # an extra: it may be there
    assert neighbour["available"] == (importlib.util.find_spec("torch") is not None)
    assert neighbour["available"] or neighbour["reason"].endswith('; pip install "dllm[torch]"')
    assert [e["default"] for e in found.values()].count(True) == 1
    best = max((e for e in found.values() if e["available"]), key=lambda e: e["priority"])
    assert best["default"]
    reference = found["numpy"]
    assert reference["available"]
    assert set(reference["schemes"]) == set(SCHEMES)
    assert reference["operators"]["linear"] == "own"
    assert reference["operators"]["layer"] == "composite"
    for entry in found.values():
        assert entry["isa"] in entry["isa_rows"]
        assert set(entry["operators"]) == set(reference["operators"])
        assert entry["operators"]["linear"] == "own"


def test_backends_table(dllm: Dllm, install: Callable[..., None]) -> None:
    class Halfway(NumpyBackend):
        name = "halfway"

        def swiglu(self, gate_up, out=None):
            return super().swiglu(gate_up, out)

        def mlp(self, x, w):
            return super().mlp(x, w)

    def unavailable(threads: int) -> NumpyBackend:
        raise BackendUnavailable("needs a quantum computer")

    def broken(threads: int) -> NumpyBackend:
        raise RuntimeError("boom")

    def register(register: Callable[..., None]) -> None:
        register("halfway", Halfway, priority=-1, summary="half of it")
        register("quantum", unavailable, priority=99)
        register("broken", broken, priority=98)

    install("extra", dllm_register_backends=register)
    result = dllm("backends")
    assert (result.code, result.err) == (0, "")
    assert "quantum does not run here: needs a quantum computer" in result.out
    assert "broken does not run here: RuntimeError: boom" in result.out
    assert result.out.count("default") == 1
    found = {entry["name"]: entry for entry in dllm("backends", "--json").json["backends"]}
    assert not found["quantum"]["default"]
    operators = found["halfway"]["operators"]
    assert {name for name, who in operators.items() if who == "own"} == {"swiglu", "mlp"}
    assert operators["linear"] == "numpy"
    assert operators["layer"] == "composite"


# ---- check ----


def test_check_of_the_reference_is_green(dllm: Dllm) -> None:
    result = dllm("check", "--backend", "numpy", "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["ok"]
    rows = result.json["rows"]
    assert {"backend", "isa", "case", "exact", "max_error", "nmse", "tolerance", "ok", "detail"} <= set(rows[0])
    assert any(row["case"].startswith("forward") for row in rows)


def test_check_names_what_is_wrong(dllm: Dllm, install: Callable[..., None]) -> None:
    class Wrong(NumpyBackend):
        name = "wrong"

        def swiglu(self, gate_up, out=None):
            right = super().swiglu(gate_up, out)
            right *= np.float32(1.01)
            return right

    install("extra", dllm_register_backends=lambda register: register("wrong", Wrong))
    result = dllm("check", "--backend", "wrong")
    assert result.code == 1
    failed = [line for line in result.out.splitlines() if line.endswith("FAIL")]
    assert any("swiglu" in line for line in failed)
    assert not any("rope" in line for line in failed)
    assert len(result.err.splitlines()) == len(failed)
    assert all(line.startswith("error: wrong ") for line in result.err.splitlines())


def test_check_table(dllm: Dllm, monkeypatch: pytest.MonkeyPatch) -> None:
    good = CheckRow("numpy", "portable", "rope (5 cases)", None, 0.0, None, 4.6e-7, True)
    bad = CheckRow("cffi-simd", "avx2", "linear qd8", False, 0.25, 1e-3, 1e-6, False, "codes differ")
    rows = [good, bad]
    monkeypatch.setattr("dllm_core.testing.check.run_checks", lambda *given: rows)
    words = [line.split() for line in dllm("check").out.splitlines()]
    assert ["numpy", "portable", "rope", "(5", "cases)", "0", "4.6e-07", "ok"] in words
    assert ["cffi-simd", "avx2", "linear", "qd8", "differs", "2.5e-01", "1.0e-03", "1.0e-06", "FAIL"] in words
    assert words[-1] == ["2", "checks,", "1", "failed"]
    warning = "warning: backend numba-int8 cannot run here and was left out: see dllm backends\n"
    error = "error: cffi-simd avx2 linear qd8: codes differ\n"
    assert dllm("check").err == warning + error
    assert dllm("check", "--quiet").err == error
    as_json = dllm("check", "--json")
    assert as_json.code == 1
    assert [row["ok"] for row in as_json.json["rows"]] == [True, False]
    rows.remove(bad)
    assert dllm("check").code == 0
    assert dllm("check").out.endswith("\n1 checks, all ok\n")


# ---- inspect ----


def test_inspect(dllm: Dllm, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    count = sum(t.size for t in tensors.values())
    facts = dllm("inspect", folder, "--json").json
    assert facts["schema"] == 1
    assert (facts["parameters"], facts["tensors"], facts["bytes"]) == (count, len(tensors), 4 * count)
    assert facts["supported"]
    assert facts["context"] == 64
    assert facts["special_ids"]["mask"] == 130
    text = dllm("inspect", folder).out
    assert f"{count:,}" in text
    assert "mask 130, eos 129" in text
    assert "--prompt-ids" in text
    assert all(scheme in text for scheme in SCHEMES)


def test_inspect_says_why_a_model_is_not_supported(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"alibi": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    result = dllm("inspect", tmp_path)
    assert result.code == 0
    assert "no: config.json: alibi=True" in result.out


# ---- tokenize ----


def test_tokenize_there_and_back(dllm: Dllm, base: Path) -> None:
    ids = [CHARACTERS.index(c) for c in "Hi, 3\n!"]
    there = dllm("tokenize", "-m", base, "Hi, 3\n!")
    assert there == Result(0, ",".join(map(str, ids)) + "\n", "")
    back = dllm("tokenize", "-m", base, "--prompt-ids", there.out.strip())
    assert back == Result(0, "Hi, 3\n!\n", "")


def test_tokenize_pieces(dllm: Dllm, base: Path) -> None:
    lines = dllm("tokenize", "-m", base, "a\nb", "--pieces").out.splitlines()
    assert [line.split() for line in lines] == [
        ["id", "text"],
        [str(CHARACTERS.index("a")), "'a'"],
        [str(CHARACTERS.index("\n")), "'\\n'"],
        [str(CHARACTERS.index("b")), "'b'"],
    ]
    answer = dllm("tokenize", "-m", base, "a\nb", "--json").json
    assert answer["pieces"] == ["a", "\n", "b"]
    assert answer["text"] == "a\nb"


def test_tokenize_chat(dllm: Dllm, spoken: Path, base: Path) -> None:
    answer = dllm("tokenize", "-m", spoken, "hi", "--chat", "--json").json
    assert answer["text"] == "[user]hi<|eot_id|>[assistant]"
    assert answer["pieces"][8] == "<|eot_id|>"
    refused = dllm("tokenize", "-m", base, "hi", "--chat")
    assert refused.code == 2
    assert "chat template" in refused.err


def test_tokenize_ids_without_tokenizer(dllm: Dllm, folder: Path) -> None:
    result = dllm("tokenize", "-m", folder, "--prompt-ids", "1, 2 130")
    assert (result.code, result.out) == (0, "1,2,130\n")
    assert result.err.startswith("warning: ")
    assert dllm("tokenize", "-m", folder, "--prompt-ids", "1,2", "--json").json["text"] is None


# ---- logits ----


def test_logits(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.npy"
    ids = [5, 6, 7, 130]
    result = dllm("logits", "-m", folder, "--prompt-ids", "5,6,7,130", "--out", out, "--json")
    assert (result.code, result.err) == (0, "")
    expected = load(str(folder), backend="numpy").logits(ids)
    found = np.load(out)
    assert found.dtype == np.float32
    assert found.shape == (4, 131)
    np.testing.assert_array_equal(found, expected)
    assert result.json["shape"] == [4, 131]
    assert result.json["rows"] == [0, 1, 2, 3]
    rows = tmp_path / "rows"  # the name is kept as given
    assert dllm("logits", "-m", folder, "--prompt-ids", "5,6,7,130", "--out", rows, "--rows", "3,0,3").code == 0
    np.testing.assert_allclose(np.load(rows), expected[[3, 0, 3]], rtol=0, atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.npy", "rows"]


def test_logits_of_text(dllm: Dllm, spoken: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    assert dllm("logits", "-m", spoken, "hi", "--out", out, "--quiet") == Result(0, "", "")
    assert np.load(out).shape[0] == 2
    assert dllm("logits", "-m", spoken, "hi", "--chat", "--out", out).code == 0
    assert np.load(out).shape[0] == len("[user]hi") + 1 + len("[assistant]")


@pytest.mark.parametrize(("rows", "code", "words"), [("4", 3, "row 4"), ("-1", 3, "row -1"), ("x", 2, "'x'")])
def test_logits_rows_that_do_not_exist(
    dllm: Dllm, folder: Path, tmp_path: Path, rows: str, code: int, words: str
) -> None:
    result = dllm("logits", "-m", folder, "--prompt-ids", "5,6,7,8", "--out", tmp_path / "x.npy", f"--rows={rows}")
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert list(tmp_path.iterdir()) == []


def test_logits_are_written_whole_or_not_at_all(
    dllm: Dllm, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.npy"
    out.write_bytes(b"before")

    def half(file, array):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", half)
    result = dllm("logits", "-m", folder, "--prompt-ids", "5,6", "--out", out)
    assert (result.code, result.err) == (4, "error: no space left on device\n")
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]
    assert out.read_bytes() == b"before"


# ---- plugins ----


def test_plugins(dllm: Dllm) -> None:
    found = {p["name"]: p for p in dllm("plugins", "--json").json["plugins"]}
    assert found["numpy"]["backends"] == ["numpy"]
    assert found["tiny"]["models"] == ["tiny"]
    assert "train" in found["train"]["commands"]
    assert all(p["error"] is None for p in found.values())


def test_broken_plugins_are_shown_and_harmless(dllm: Dllm, install: Callable[..., None]) -> None:
    def fail(**given: object) -> None:
        raise ValueError("bad backend")

    def clash(cli: click.Group) -> None:
        cli.add_command(click.Command("train"))

    install("backless", dllm_register_backends=lambda register: fail())
    install("zclash", dllm_register_commands=clash)
    install("fails", dllm_register_commands=lambda cli: fail())
    result = dllm("plugins")
    assert (result.code, result.err) == (0, "")
    rows = {line.split()[0]: line for line in result.out.splitlines()}
    assert "broken: ValueError: bad backend" in rows["backless"]
    assert "broken: ValueError: bad backend" in rows["fails"]
    assert "command train is already registered by plugin train" in rows["zclash"]
    assert "broken" not in rows["numpy"]
    assert "  train " in dllm("--help").out


def test_commands_of_plugins(dllm: Dllm, install: Callable[..., None]) -> None:
    @click.command(short_help="Says hello.")
    @click.option("--loud", is_flag=True)
    def hello(loud: bool) -> None:
        click.echo("HELLO" if loud else "hello")

    @click.command()
    def run() -> None:
        click.echo("mine")

    def register(cli: click.Group) -> None:
        cli.add_command(hello)
        cli.add_command(run)

    install("extra", dllm_register_commands=register)
    text = dllm("--help").out
    assert "Says hello." in text
    assert dllm("hello", "--loud") == Result(0, "HELLO\n", "")
    assert dllm("hello", "--quiet", "--color", "never", "--debug") == Result(0, "hello\n", "")
    assert "mine" not in dllm("run", "x", "--steps", "0").out  # a builtin verb cannot be replaced


# ---- the rest ----


def test_version(dllm: Dllm) -> None:
    assert dllm("--version") == Result(0, f"dllm {dllm_core.__version__}\n", "")


def test_help_without_arguments(dllm: Dllm) -> None:
    assert dllm() == dllm("--help")
    verbs = [
        "run",
        "fill",
        "score",
        "trace",
        "strategies",
        "tokenize",
        "logits",
        "inspect",
        "backends",
        "check",
        "plugins",
        "completion",
        "train",
    ]
    assert all(f"\n  {verb} " in dllm().out for verb in verbs)
    assert dllm("run", "-h").out.startswith("Usage: dllm run")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_scripts(dllm: Dllm, shell: str) -> None:
    result = dllm("completion", shell)
    assert result.code == 0
    assert "_DLLM_COMPLETE" in result.out
    assert f"{shell}_complete" in result.out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dllm ba", {"backends"}),
        ("dllm run --backend num", {"numpy", "numba-int8"}),
        ("dllm run --model ti", {"tiny"}),
        ("dllm run --remasking lo", {"low_confidence"}),
        ("dllm run --strategy fast-", {"fast-dual", "fast-prefix"}),
        ("dllm fill --commit entropy", {"entropy-bound", "entropy-exit"}),
        ("dllm run --block", {"--block-length"}),
        ("dllm run --scheme qd8", {"qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w"}),
        ("dllm trai", {"train"}),
    ],
)
def test_completion(spawn: Dllm, line: str, expected: set[str]) -> None:
    result = spawn(_DLLM_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(line.split()) - 1))
    assert {entry.split(",", 1)[1] for entry in result.out.splitlines()} == expected


def test_model_names_complete_to_paths_otherwise(spawn: Dllm) -> None:
    line = f"dllm run --model {os.sep}etc"
    result = spawn(_DLLM_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="3")
    assert result.out == f"file,{os.sep}etc\n"
