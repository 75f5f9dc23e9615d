"""`dllm run`: what it prints where, and that it decodes what the Python API decodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dllm_core import load

from .conftest import CHARACTERS, Result

Dllm = Callable[..., Result]

FIELDS = {
    "schema", "model", "text", "tokens", "prompt_tokens", "forward_passes", "steps", "finish_reason", "seed", "backend",
    "isa", "scheme", "threads", "load_s", "generate_s", "ms_per_step", "peak_rss_bytes",
}  # fmt: skip


def test_ids_in_ids_out(dllm: Dllm, folder: Path) -> None:
    result = dllm("run", "-m", folder, "--prompt-ids", "5,6,7", "-n", 8)
    engine = load(str(folder), backend="numpy")
    expected = engine.generate([5, 6, 7], max_tokens=8)
    assert expected.text is None
    answer = expected.tokens[3 : 3 + expected.useful_tokens]
    assert result == Result(0, ",".join(map(str, answer)) + "\n", "")


def test_json_fields(dllm: Dllm, folder: Path) -> None:
    result = dllm("run", "-m", folder, "--prompt-ids", "5,6,7", "-n", 8, "--steps", 4, "--seed", 9, "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    answer = result.json
    assert set(answer) >= FIELDS
    assert answer["schema"] == 1
    assert answer["model"] == str(folder)
    assert answer["text"] is None
    assert answer["tokens"][:3] == [5, 6, 7]
    assert len(answer["tokens"]) == 11
    assert (answer["prompt_tokens"], answer["steps"], answer["forward_passes"], answer["seed"]) == (3, 4, 4, 9)
    assert (answer["backend"], answer["scheme"], answer["threads"]) == ("numpy", "f32", 1)
    assert answer["peak_rss_bytes"] > 10 * 2**20


OPTIONS = [
    ("--steps 5 --block-length 4", {"steps": 5, "block_length": 4}),
    ("--temperature 0.7 --seed 3", {"temperature": 0.7, "seed": 3}),
    ("--temp 1.5", {"temperature": 1.5}),
    ("--remasking random --seed 1", {"remasking": "random", "seed": 1}),
    ("--cfg-scale 2.5", {"cfg_scale": 2.5}),
    ("--logits-eos-inf", {"logits_eos_inf": True}),
    ("--confidence-eos-eot-inf", {"confidence_eos_eot_inf": True}),
]


@pytest.mark.parametrize(("flags", "options"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_every_option_reaches_the_decoder(dllm: Dllm, folder: Path, flags: str, options: dict[str, object]) -> None:
    result = dllm("run", "-m", folder, "--prompt-ids", "5,6,7", "-n", 16, "--json", *flags.split())
    engine = load(str(folder), backend="numpy")
    expected = engine.generate([5, 6, 7], max_tokens=16, **options)
    assert result.json["tokens"] == expected.tokens
    assert result.json["forward_passes"] == expected.forward_passes


@pytest.mark.parametrize("flag", ["-n", "--max-tokens", "--n-predict", "--gen-length"])
def test_names_of_the_length(dllm: Dllm, folder: Path, flag: str) -> None:
    assert len(dllm("run", "-m", folder, "--prompt-ids", "5", flag, 6, "--json").json["tokens"]) == 7


def test_aliases_are_hidden(dllm: Dllm) -> None:
    text = dllm("run", "--help").out
    assert "--max-tokens" in text
    assert "--n-predict" not in text
    assert "--gen-length" not in text


def test_text_goes_through_the_template(dllm: Dllm, spoken: Path) -> None:
    prompt = "[system]S<|eot_id|>[user]hi<|eot_id|>[assistant]"
    ids = dllm("tokenize", "-m", spoken, prompt, "--json").json["ids"]
    result = dllm("run", "-m", spoken, " hi ", "-s", "S", "-n", 8, "--json")
    assert result.json["tokens"][: result.json["prompt_tokens"]] == ids
    raw = dllm("run", "-m", spoken, "hi", "--no-chat", "-n", 8, "--json").json
    assert raw["tokens"][: raw["prompt_tokens"]] == [CHARACTERS.index("h"), CHARACTERS.index("i")]


def test_answer_is_all_of_stdout(dllm: Dllm, spoken: Path) -> None:
    answer = dllm("run", "-m", spoken, "hi", "-n", 8, "--json").json
    plain = dllm("run", "-m", spoken, "hi", "-n", 8, "--verbose")
    assert plain.out == answer["text"].rstrip("\n") + "\n"


def test_no_template_warns_once(dllm: Dllm, base: Path) -> None:
    result = dllm("run", "-m", base, "hi", "-n", 8)
    assert result.code == 0
    assert result.err.startswith("warning: ")
    assert result.err.count("\n") == 1
    assert "chat template" in result.err
    assert result.out == dllm("run", "-m", base, "hi", "-n", 8, "--no-chat").out
    assert dllm("run", "-m", base, "hi", "-n", 8, "--no-chat").err == ""
    assert dllm("run", "-m", base, "hi", "-n", 8, "--quiet").err == ""
    assert dllm("--quiet", "run", "-m", base, "hi", "-n", 8).err == ""
    assert dllm("run", "-m", base, "hi", "-s", "be brief").code == 2


def test_verbose_report(dllm: Dllm, folder: Path) -> None:
    result = dllm("run", "-m", folder, "--prompt-ids", "5,6,7", "-n", 8, "-v", "--json")
    lines = dict(line.split(None, 1) for line in result.err.splitlines())
    assert str(folder) in lines["model"]
    assert lines["backend"] == "numpy, portable, f32, 1 thread"
    assert "8 forward passes" in lines["generate"]
    assert "ms a step" in lines["generate"]
    for kind in ("GEMM", "attention", "head", "sampling"):
        assert kind in lines["a"]  # "a step"
    assert "useful tokens/s" in lines["speed"]
    assert "canvas tokens/s" in lines["speed"]
    assert lines["memory"].endswith("MiB at the peak")
    assert lines["load"].endswith(" s")


def test_time_split_adds_up(dllm: Dllm, folder: Path) -> None:
    answer = dllm("run", "-m", folder, "--prompt-ids", "5,6,7", "-n", 8, "--json").json
    assert 0 < sum(answer["ms_by_kind"].values()) <= answer["ms_per_step"]


def test_precedence_of_the_environment(dllm: Dllm, folder: Path, spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLLM_MODEL", str(folder))
    monkeypatch.setenv("DLLM_RUN_MAX_TOKENS", "4")
    monkeypatch.setenv("DLLM_SCHEME", "qd8-f32-qc8w")
    answer = dllm("run", "--prompt-ids", "5", "--json").json
    assert (answer["model"], len(answer["tokens"]), answer["scheme"]) == (str(folder), 5, "qd8-f32-qc8w")
    answer = dllm("run", "--prompt-ids", "5", "--json", "-m", spoken, "-n", 3, "--scheme", "f32").json
    assert (answer["model"], len(answer["tokens"]), answer["scheme"]) == (str(spoken), 4, "f32")


def test_model_defaults_count(dllm: Dllm, tmp_path: Path, folder: Path) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).symlink_to(file)
    (copy / "generation_config.json").write_text(json.dumps({"max_new_tokens": 12, "block_length": 4, "steps": 6}))
    answer = dllm("run", "-m", copy, "--prompt-ids", "5", "--json").json
    assert (len(answer["tokens"]), answer["steps"]) == (13, 6)
    assert dllm("run", "-m", copy, "--prompt-ids", "5", "-n", 8, "--json").json["steps"] == 8


@pytest.mark.parametrize("backend", ["numpy", "numba-int8", "cffi-simd"])
def test_model_inside_adds(dllm: Dllm, backend: str) -> None:
    result = dllm("run", "--backend", backend, "What is 217 + 384?")
    assert result == Result(0, "601\n", "")
