"""Decoding options on the command line: each reaches the decoder, nonsense is refused, strategies are named sets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dllm_core import load
from dllm_core.cli.decoding import ROWS, decoding_options
from dllm_core.decoding.options import CHOICES, DecodeOptions
from dllm_core.decoding.strategies import STRATEGIES

from .conftest import Result, assert_refused

Dllm = Callable[..., Result]

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("--commit threshold", {"commit": "threshold"}),
    ("--threshold 0.05", {"threshold": 0.05}),
    ("--factor 0.5", {"factor": 0.5}),
    ("--gamma 2.5", {"gamma": 2.5}),
    ("--commit entropy-exit --gamma 4", {"commit": "entropy-exit", "gamma": 4.0}),
    ("--cache prefix --block-length 4", {"cache": "prefix", "block_length": 4}),
    ("--cache dual --block-length 4 --threshold 0.2", {"cache": "dual", "block_length": 4, "threshold": 0.2}),
    ("--cache interstep --refresh 3 --block-length 8", {"cache": "interstep", "refresh": 3, "block_length": 8}),
    ("--schedule cosine --steps 5", {"schedule": "cosine", "steps": 5}),
    ("--schedule timesteps --steps 5 --eps 0.2", {"schedule": "timesteps", "steps": 5, "eps": 0.2}),
    ("--schedule timesteps --remasking origin --steps 6", {"schedule": "timesteps", "remasking": "origin", "steps": 6}),
    (
        "--schedule timesteps --alg-temp 0.7 --remasking maskgit_plus --seed 5",
        {"schedule": "timesteps", "alg_temp": 0.7, "remasking": "maskgit_plus", "seed": 5},
    ),
    ("--remasking margin", {"remasking": "margin"}),
    ("--remasking entropy", {"remasking": "entropy"}),
    ("--remasking topk_margin --schedule timesteps", {"remasking": "topk_margin", "schedule": "timesteps"}),
    ("--temp 1.2 --top-p 0.6 --top-k 7", {"temperature": 1.2, "top_p": 0.6, "top_k": 7}),
    (
        "--revoke confidence --revoke-below 0.2 --revoke-limit 1 --threshold 0.1",
        {"revoke": "confidence", "revoke_below": 0.2, "revoke_limit": 1, "threshold": 0.1},
    ),
    ("--revoke remdm --revoke-rate 0.4", {"revoke": "remdm", "revoke_rate": 0.4}),
    ("--suppress-ids 1,2,3", {"suppress_ids": (1, 2, 3)}),
    ("--eos forbid", {"eos": "forbid"}),
    ("--eos stop --eos-penalty -9", {"eos": "stop", "eos_penalty": -9.0}),
    (
        "--eos stop --grow --block-length 4 --eos-penalty -9",
        {"eos": "stop", "grow": True, "block_length": 4, "eos_penalty": -9.0},
    ),
    ("--all-rows", {"all_rows": True}),
    ("--strategy careful", {"strategy": "careful"}),
    ("--strategy fast-dual --threshold 0.3", {"strategy": "fast-dual", "threshold": 0.3}),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "options"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_every_option_reaches_the_decoder(dllm: Dllm, folder: Path, flags: str, options: dict[str, Any]) -> None:
    answer = dllm("run", "-m", folder, "--prompt-ids", "5,6,7", "-n", 16, "--json", *flags.split()).json
    expected = load(str(folder), backend="numpy").generate([5, 6, 7], max_tokens=16, **options)
    for field in ("tokens", "forward_passes", "rows_run", "finish_reason"):
        assert answer[field] == getattr(expected, field)


def test_a_trace_keeps_the_settings_that_were_asked_for(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    for i, (flags, options) in enumerate(OPTIONS):
        out = tmp_path / f"{i}.jsonl"
        assert dllm("run", "-m", folder, "--prompt-ids", "5", "-n", 4, "--trace", out, *flags.split()).code == 0
        kept = json.loads(out.read_text().splitlines()[0])["options"]
        for key, value in options.items():
            if key != "strategy":
                assert kept[key] == (list(value) if isinstance(value, tuple) else value), flags


def test_stop_strings(dllm: Dllm, spoken: Path) -> None:
    run = ["run", "-m", spoken, "hi", "-n", 24, "--suppress-ids", "96,97,98", "--json"]  # special tokens
    whole = dllm(*run).json["text"]
    assert len(whole) == 24
    first, second = whole[10:12], whole[4:6]
    answer = dllm(*run, "--stop", first, "--stop", second).json
    assert answer["finish_reason"] == "stop"
    assert answer["text"] == whole[: min(whole.index(first), whole.index(second))]


def test_one_row_of_help_for_every_field() -> None:
    assert set(ROWS) == {f.name for f in dataclasses.fields(DecodeOptions)}
    params = decoding_options()(lambda: None).__click_params__
    flags = {opt for param in params for opt in param.opts}
    assert {"--" + f.name.replace("_", "-") for f in dataclasses.fields(DecodeOptions)} <= flags
    assert not {"--stop", "--grow"} & {
        o for p in decoding_options(("stop", "grow"))(lambda: None).__click_params__ for o in p.opts
    }


def test_help_shows_groups_choices_and_defaults(dllm: Dllm) -> None:
    text = dllm("run", "--help").out
    for heading in ("Options:", "Canvas and steps:", "Taking tokens back:", "Where it ends:"):
        assert f"\n{heading}\n" in text
    for choices in CHOICES.values():
        assert f"[{'|'.join(choices)}]" in text
    assert "[0.9]" in text
    assert "PROMPT]...\n  -m" not in text


REFUSED = [
    ("--commit threshold --remasking random", ["--commit threshold", "--remasking random"]),
    ("--remasking origin", ["origin", "--schedule timesteps"]),
    ("--revoke confidence --cache dual", ["--revoke confidence", "--cache dual"]),
    ("--revoke remdm --commit threshold", ["--revoke remdm", "--commit quota"]),
    ("--grow", ["--grow", "--eos stop"]),
    ("--grow --eos stop --schedule timesteps", ["--grow", "--schedule linear"]),
    ("--alg-temp 1", ["--alg-temp", "--schedule timesteps"]),
    ("--top-p 0.5", ["--top-p", "--temperature"]),
    ("--threshold 0.5 --factor 1", ["--threshold", "--factor", "--commit"]),
    ("--schedule timesteps --commit factor", ["--schedule timesteps", "--commit factor"]),
    ("--eos forbid --logits-eos-inf", ["--eos forbid", "--logits-eos-inf"]),
    ("--strategy fast-dual --revoke confidence", ["--revoke confidence", "--cache dual"]),
    ("--strategy fst", ["'fst'", "'fast'"]),
    ("--cache big", ["big", "prefix"]),
    ("--threshold 1.5", ["--threshold", "1.5", "0 to 1"]),
    ("--top-k -1", ["--top-k", "-1"]),
    ("--refresh 0", ["--refresh", "0"]),
    ("--revoke-limit 0", ["--revoke-limit", "0"]),
    ("--eps 0", ["--eps", "0"]),
    ("--suppress-ids x", ["'x'"]),
    ("--suppress-ids 131", ["131", "130"]),
    ("--stop x", ["--stop", "tokenizer.json"]),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=[r[0] for r in REFUSED])
def test_nonsense_is_refused(dllm: Dllm, folder: Path, flags: str, words: list[str]) -> None:
    assert_refused(dllm("run", "-m", folder, "--prompt-ids", "1,2,3", *flags.split()), 2, *words)


def test_an_empty_stop_string_is_refused(dllm: Dllm, spoken: Path) -> None:
    assert_refused(dllm("run", "-m", spoken, "hi", "--stop", ""), 2, "--stop")


def test_values_are_refused_before_the_model_is_looked_for(dllm: Dllm) -> None:
    for flags in ("--threshold 2", "--strategy fst", "--eps 1", "--top-p -1"):
        assert_refused(dllm("run", "-m", "/no/such/model", "x", *flags.split()), 2, flags.split()[1])


def test_strategies(dllm: Dllm) -> None:
    found = {s["name"]: s for s in dllm("strategies", "--json").json["strategies"]}
    assert set(found) == set(STRATEGIES)
    for name, strategy in STRATEGIES.items():
        assert found[name]["options"] == strategy.options
        assert found[name]["summary"] == strategy.summary
    lines = dllm("strategies").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(STRATEGIES)


def test_a_strategy_is_the_flags_that_it_names(dllm: Dllm, folder: Path) -> None:
    rows = {line.split()[0]: line.split("  ")[-1] for line in dllm("strategies").out.splitlines()[1:]}
    for name, flags in rows.items():
        run = ["run", "-m", folder, "--prompt-ids", "5,6", "-n", 12, "--json"]
        by_name, by_flags = dllm(*run, "--strategy", name).json, dllm(*run, *flags.split()).json
        assert by_name["tokens"] == by_flags["tokens"]
        assert by_name["rows_run"] == by_flags["rows_run"]


def test_plugins_bring_strategies(dllm: Dllm, install: Callable[..., None], folder: Path) -> None:
    options = {"commit": "threshold", "threshold": 0.0, "eos": "stop"}
    install("extra", dllm_register_strategies=lambda register: register("reckless", options, "all at once"))
    assert "all at once" in dllm("strategies").out
    found = dllm(
        "run", "-m", folder, "--prompt-ids", "5", "-n", 8, "--block-length", 8, "--strategy", "reckless", "--json"
    )
    assert found.json["forward_passes"] == 1
    extra = next(p for p in dllm("plugins", "--json").json["plugins"] if p["name"] == "extra")
    assert extra["strategies"] == ["reckless"]


def test_the_view_shows_what_is_taken_back(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    flags = ["--strategy", "careful", "--eos", "keep", "-n", 16, "--trace", tmp_path / "t.jsonl"]
    lines = dllm("run", "-m", folder, "--prompt-ids", "5,6", *flags, "--visual").err.splitlines()
    steps = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()[1:]]
    assert len(lines) == len(steps)
    assert any(step["revoked"] for step in steps)
    for line, step in zip(lines, steps, strict=True):
        new = {c["position"] for c in step["commits"]}
        assert f"+{len(new)}" + (f" -{len(step['revoked'])}" if step["revoked"] else "") + "  " in line
        assert line.count("~") == len(set(step["revoked"]) - new)
