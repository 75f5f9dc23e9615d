"""Whatever is wrong with flags, files or values: one line, the right exit code, nothing written."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dllm_core import api

from .conftest import Result, assert_refused, edit_config, with_tokenizer

Dllm = Callable[..., Result]

FLAGS = [
    ("--max-tokens 0", 2, ["--max-tokens", "0", "at least 1"]),
    ("--max-tokens -3", 2, ["--max-tokens", "-3"]),
    ("--n-predict 0", 2, ["--max-tokens", "0"]),
    ("--steps 0", 2, ["--steps", "0"]),
    ("--steps -1", 2, ["--steps", "-1"]),
    ("--block-length 0", 2, ["--block-length", "0"]),
    ("--block-length -8", 2, ["--block-length", "-8"]),
    ("--max-tokens 16 --block-length 4 --steps 3", 2, ["--steps", "3", "4 blocks"]),
    ("--threads 0", 2, ["--threads", "0"]),
    ("--threads -2", 2, ["--threads", "-2"]),
    ("--temperature -1", 2, ["--temperature", "-1"]),
    ("--temperature nan", 2, ["--temperature", "nan"]),
    ("--temp inf", 2, ["--temperature", "inf"]),
    ("--cfg-scale -0.5", 2, ["--cfg-scale", "-0.5"]),
    ("--seed -1", 2, ["--seed", "-1"]),
    ("--seed 18446744073709551616", 2, ["--seed", "18446744073709551616"]),
    ("--steps many", 2, ["--steps", "many"]),
    ("--temperature hot", 2, ["--temperature", "hot"]),
    ("--remasking best", 2, ["--remasking", "best", "low_confidence"]),
    ("--stesp 3", 2, ["--stesp", "--steps"]),
    ("--steps", 2, ["--steps"]),
    ("--color pink", 2, ["--color", "pink"]),
    ("--backend nump", 2, ["nump", "'numpy'"]),
    ("--scheme int3", 6, ["int3", "f32"]),
    ("--max-tokens 62", 2, ["62", "65", "64", "61 or less"]),
    ("--max-tokens 100000000", 2, ["100000000", "64"]),
    ("--max-tokens 8 --gen-length 9", 2, ["8", "9"]),
    ("--pace 1", 2, ["--pace", "--visual"]),
    ("--system hello", 2, ["--system"]),
]


@pytest.mark.parametrize(("flags", "code", "words"), FLAGS, ids=[f[0] for f in FLAGS])
def test_run_refuses_bad_values(dllm: Dllm, folder: Path, flags: str, code: int, words: list[str]) -> None:
    assert_refused(dllm("run", "-m", folder, "--prompt-ids", "1,2,3", *flags.split()), code, *words)


IDS = [
    ("1,131", ["131", "130"]),
    ("-1,2", ["-1"]),
    ("1,x", ["'x'"]),
    ("1.5", ["1.5"]),
    (",", ["empty"]),
    ("9" * 30, []),
]


@pytest.mark.parametrize(("ids", "words"), IDS, ids=[i[0] for i in IDS])
@pytest.mark.parametrize("verb", ["run", "tokenize", "logits"])
def test_bad_ids(dllm: Dllm, folder: Path, tmp_path: Path, verb: str, ids: str, words: list[str]) -> None:
    extra = ["--out", tmp_path / "x.npy"] if verb == "logits" else []
    assert_refused(dllm(verb, "-m", folder, f"--prompt-ids={ids}", *extra), 2, *words)
    assert list(tmp_path.iterdir()) == []


ARGUMENTS = [
    (["frob"], 2, ["frob"]),
    (["ruN", "x"], 2, ["'run'"]),
    (["--colour", "never", "run"], 2, ["--colour"]),
    (["run"], 2, ["no prompt"]),
    (["run", ""], 2, ["empty"]),
    (["run", "  "], 2, ["empty"]),
    (["run", "two", "words"], 2, ["quote the prompt"]),
    (["run", "tiny", "words"], 2, ["-m tiny"]),
    (["run", "text", "--prompt-ids", "1,2"], 2, ["text", "--prompt-ids"]),
    (["run", "-", "--prompt-ids", "1,2"], 2, ["--prompt-ids"]),
    (["run", "-", "--no-stdin"], 2, ["--no-stdin"]),
    (["run", "-m", "tinny", "x"], 3, ["tinny", "'tiny'"]),
    (["run", "-m", "", "x"], 2, ["empty"]),
    (["run", "-m", "/no/such/folder", "x"], 3, ["/no/such/folder"]),
    (["run", "--system", "s", "--no-chat", "x"], 2, ["--system"]),
    (["run", "x", "--threads", "0"], 2, ["--threads"]),
    (["tokenize", "text", "--prompt-ids", "1,2"], 2, ["--prompt-ids"]),
    (["tokenize", "--chat", "--prompt-ids", "1,2"], 2, ["--chat"]),
    (["tokenize", "x", "--system", "s"], 2, ["--chat"]),
    (["tokenize", "-m", "nothing", "x"], 3, ["nothing"]),
    (["logits", "x"], 2, ["--out"]),
    (["logits", "x", "--out", "/no/such/place/x.npy"], 3, ["/no/such/place"]),
    (["logits", "x", "--out", "/tmp"], 2, ["/tmp"]),
    (["inspect"], 2, ["missing"]),
    (["inspect", "/no/such/folder"], 3, ["/no/such/folder"]),
    (["inspect", "/dev/null"], 3, ["/dev/null"]),
    (["check", "--backend", "nump"], 2, ["nump", "'numpy'"]),
    (["check", "--threads", "0"], 2, ["--threads"]),
    (["check", "-m", "nothing"], 3, ["nothing"]),
    (["backends", "--threads", "-1"], 2, ["--threads"]),
    (["completion", "tcsh"], 2, ["tcsh", "bash"]),
    (["plugins", "extra"], 2, ["extra"]),
]


@pytest.mark.parametrize(("arguments", "code", "words"), ARGUMENTS, ids=[" ".join(a[0]) for a in ARGUMENTS])
def test_bad_arguments(dllm: Dllm, arguments: list[str], code: int, words: list[str]) -> None:
    assert_refused(dllm(*arguments), code, *words)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A model folder of the test's own, to damage."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


def rewrite(copy: Path, name: str, array: np.ndarray) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {name: array}, file)


def test_missing_weights(dllm: Dllm, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 3, "model.safetensors")


def test_missing_config(dllm: Dllm, copy: Path) -> None:
    (copy / "config.json").unlink()
    for verb in ("run", "tokenize"):
        assert_refused(dllm(verb, "-m", copy, "--prompt-ids", "1"), 3, "config.json")


def test_truncated_weights(dllm: Dllm, copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 1, "model.safetensors", "truncated")
    assert_refused(dllm("inspect", copy), 1, "truncated")


def test_header_lies_about_offsets(dllm: Dllm, copy: Path) -> None:
    file = copy / "model.safetensors"
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    name = next(n for n in header if n.endswith("wte.weight"))
    header[name]["data_offsets"] = [v + 4 for v in header[name]["data_offsets"]]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 1, "wte.weight")


def test_wrong_shape(dllm: Dllm, copy: Path) -> None:
    rewrite(copy, "model.transformer.ln_f.weight", np.ones(7, np.float32))
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 1, "ln_f.weight", "[7]", "[64]")


def test_missing_tensor(dllm: Dllm, copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.transformer.blocks.1.q_proj.weight"]
    save_file(tensors, copy / "model.safetensors")
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 1, "blocks.1.q_proj.weight")


def test_config_not_json(dllm: Dllm, copy: Path) -> None:
    (copy / "config.json").write_text("{")
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 1, "config.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "lalda"}, ["lalda", "llada"]),
        ({"alibi": True}, ["alibi"]),
        ({"new_trick": 3}, ["new_trick"]),
        ({"n_heads": 0}, ["n_heads", "0"]),
        ({"mask_token_id": 131}, ["mask_token_id", "131"]),
        ({"mask_token_id": None}, ["mask_token_id"]),
    ],
)
def test_unknown_config(dllm: Dllm, copy: Path, changes: dict[str, object], words: list[str]) -> None:
    edit_config(copy, **changes)
    assert_refused(dllm("run", "-m", copy, "--prompt-ids", "1"), 6, *words)


def test_tokenizer_without_its_mask_token(dllm: Dllm, tmp_path: Path) -> None:
    path = with_tokenizer(tmp_path / "model", None, mask_token="<|gone|>")
    assert_refused(dllm("run", "-m", path, "x"), 1, "mask_token", "<|gone|>")


def test_text_without_tokenizer(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    for verb in ("run", "tokenize"):
        assert_refused(dllm(verb, "-m", folder, "text"), 2, "tokenizer", "--prompt-ids 1,2,3")
    assert_refused(dllm("logits", "-m", folder, "text", "--out", tmp_path / "x.npy"), 2, "--prompt-ids 1,2,3")
    assert list(tmp_path.iterdir()) == []


def test_prompt_that_is_no_utf8(spawn: Dllm, spoken: Path) -> None:
    assert_refused(spawn("tokenize", "-m", spoken, "a\udcff"), 2, "UTF-8")


def test_scheme_from_the_environment(dllm: Dllm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLLM_SCHEME", "int3")
    assert_refused(dllm("run", "-m", folder, "--prompt-ids", "1"), 6, "int3")


def test_unknown_isa(dllm: Dllm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLLM_ISA", "mmx")
    assert_refused(dllm("run", "-m", folder, "-b", "cffi-simd", "--prompt-ids", "1"), 2, "DLLM_ISA", "mmx")


@pytest.mark.parametrize("arguments", [["run"], ["run", "--stesp", "3"], ["frob"], ["run", "-m", "tinny", "x"]])
def test_json_errors(dllm: Dllm, arguments: list[str]) -> None:
    plain = dllm(*arguments)
    result = dllm(*arguments, "--json")
    assert result.code == plain.code
    assert result.out == ""
    assert result.err.count("\n") == 1
    error = json.loads(result.err)["error"]
    assert set(error) == {"type", "message", "hint"}
    assert plain.err == f"error: {error['message']}\nhint: {error['hint']}\n"


FAULTS = [
    (MemoryError(), 4, "not enough memory"),
    (KeyboardInterrupt(), 130, ""),
    (FileNotFoundError(2, "No such file or directory", "x.bin"), 3, "no such file or directory: x.bin"),
    (OSError(28, "No space left on device"), 4, "no space left on device"),
    (PermissionError(13, "Permission denied", "x.bin"), 1, "permission denied: x.bin"),
    (ZeroDivisionError("by zero"), 1, "internal error: ZeroDivisionError: by zero"),
]


@pytest.mark.parametrize(("fault", "code", "words"), FAULTS, ids=[type(f[0]).__name__ for f in FAULTS])
def test_faults_become_exit_codes(
    dllm: Dllm, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, code: int, words: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(api, "load", fail)
    result = dllm("run", "-m", folder, "--prompt-ids", "1")
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert "Traceback" not in result.err
    if code != 130:
        debug = dllm("run", "-m", folder, "--prompt-ids", "1", "--debug")
        assert debug.code == code
        assert "Traceback (most recent call last)" in debug.err
        monkeypatch.setenv("DLLM_DEBUG", "1")
        assert "Traceback" in dllm("run", "-m", folder, "--prompt-ids", "1").err
