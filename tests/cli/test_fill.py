"""`dllm fill` and `dllm score`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dllm_core import load
from dllm_core.decoding.likelihood import greedy_suffix, log_likelihood

from .conftest import CHARACTERS, Result, assert_refused

Dllm = Callable[..., Result]
NO_SPECIAL = ["--suppress-ids", "96,97,98"]

# ---- fill ----


def test_text_around_the_masks_is_kept(dllm: Dllm, spoken: Path) -> None:
    template = "  Total: [MASK:4], [[MASK]]  (x)<|eot_id|>\n[MASK:2]!"
    result = dllm("fill", "-m", spoken, template, *NO_SPECIAL)
    assert (result.code, result.err) == (0, "")
    parts = ["  Total: ", ", [", "]  (x)<|eot_id|>\n", "!"]
    sizes = [len(p) for p in parts]
    text = result.out[:-1]
    assert len(text) == sum(sizes) + 7
    assert (text[:9], text[13:16], text[17:34], text[-1]) == tuple(parts)


def test_json_and_ids(dllm: Dllm, folder: Path, spoken: Path) -> None:
    ids = "5,130,7,130,130"
    found = dllm("fill", "-m", folder, "--prompt-ids", ids, "--json", "--suppress-ids", 130).json
    assert found["schema"] == 1
    assert (found["tokens"][0], found["tokens"][2], found["text"]) == (5, 7, None)
    assert (found["prompt_tokens"], found["canvas_tokens"], found["forward_passes"]) == (2, 3, 3)
    assert (found["finish_reason"], found["masks_left"]) == ("filled", 0)
    plain = dllm("fill", "-m", folder, "--prompt-ids", ids, "--suppress-ids", 130)
    assert plain.out == ",".join(map(str, found["tokens"])) + "\n"
    expected = load(str(spoken), backend="numpy").fill("a[MASK:3]b", steps=2)
    assert dllm("fill", "-m", spoken, "a[MASK:3]b", "--steps", 2, "--json").json["tokens"] == expected.tokens


def test_end_tokens_written_into_masks_have_no_text(dllm: Dllm, spoken: Path) -> None:
    found = dllm("fill", "-m", spoken, "a[MASK:3]b", "--eos-penalty", -99, "--json").json
    assert set(found["tokens"][1:4]) <= {96, 97}
    assert (found["text"], found["useful_tokens"]) == ("ab", 0)


def test_a_template_that_answers_a_prompt(dllm: Dllm, spoken: Path, base: Path) -> None:
    chat = ["tokenize", "-m", spoken, "hi", "--chat", "--system", "S", "--json"]
    prompt = dllm(*chat).json["ids"]
    fill = ["fill", "-m", spoken, "ab[MASK:2]c", "--prompt", "hi", "--system", "S", *NO_SPECIAL]
    found = dllm(*fill, "--json").json
    assert found["tokens"][: len(prompt)] == prompt
    assert (len(found["tokens"]), found["canvas_tokens"]) == (len(prompt) + 5, 2)
    assert found["text"][:2] + found["text"][4:] == "abc"
    assert dllm(*fill).out == found["text"] + "\n"
    ids = dllm("fill", "-m", spoken, "--prompt-ids", "65,98", "--prompt", "hi", "--json", *NO_SPECIAL).json
    assert ids["text"][0] == "a"
    assert len(ids["text"]) == 2
    warned = dllm("fill", "-m", base, "ab[MASK:2]c", "--prompt", "hi", "--json", *NO_SPECIAL)
    assert warned.err.startswith("warning: ")
    assert warned.json["tokens"][:2] == [CHARACTERS.index(c) for c in "hi"]
    assert_refused(dllm("fill", "-m", spoken, "[MASK]", "--system", "S"), 2, "--system", "--prompt")


def test_the_template_from_standard_input(spawn: Dllm, spoken: Path) -> None:
    piped = spawn("fill", "-m", spoken, "-", *NO_SPECIAL, text="a[MASK:3]b\n")
    assert piped.code == 0
    assert piped.out[0] + piped.out[4:] == "ab\n"
    assert spawn("fill", "-m", spoken, "a[MASK:3]b", *NO_SPECIAL).out == piped.out


def test_the_view_shows_the_whole_template(dllm: Dllm, spoken: Path) -> None:
    lines = dllm("fill", "-m", spoken, "see [MASK:3] there", "--visual", *NO_SPECIAL).err.splitlines()
    assert len(lines) == 3
    assert all("|see " in line and " there|" in line for line in lines)
    assert [line.split("|")[1].count("_") for line in lines] == [2, 1, 0]


TEMPLATES = [
    ("nothing here", ["no mask", "[MASK:n]"]),
    ("[MASK:0]", ["[MASK:0]"]),
    ("a [MASK:many]", ["[MASK:many]"]),
    ("a [MASK:161]", ["[MASK:161]", "160"]),
    ("a [MASK:" + "9" * 30 + "]", ["160"]),
    ("ab[MASK:159]", ["160"]),
]


@pytest.mark.parametrize(("template", "words"), TEMPLATES, ids=[t[0][:20] for t in TEMPLATES])
def test_templates_that_are_none(dllm: Dllm, spoken: Path, template: str, words: list[str]) -> None:
    assert_refused(dllm("fill", "-m", spoken, template), 2, *words)


def test_fill_refuses(dllm: Dllm, folder: Path, spoken: Path) -> None:
    assert_refused(dllm("fill", "-m", folder, "a[MASK]"), 2, "tokenizer.json", "--prompt-ids")
    assert_refused(dllm("fill", "-m", folder, "--prompt-ids", "1,2"), 2, "no mask")
    assert_refused(dllm("fill", "-m", folder, "--prompt-ids", "1,131"), 2, "131")
    assert_refused(dllm("fill", "-m", spoken, "a[MASK]", "--eos", "stop"), 2, "--eos stop", "template")
    assert_refused(dllm("fill", "-m", spoken, "a[MASK]", "--max-tokens", 4), 2, "--max-tokens")
    assert_refused(dllm("fill", "-m", spoken, "a[MASK]", "--stop", "x"), 2, "--stop")
    assert_refused(dllm("fill"), 2, "no prompt")
    assert dllm("fill", "-m", spoken, "a[MASK:2]", "--strategy", "fast").code == 0  # its --eos stop is dropped


# ---- score ----


def test_score_is_the_bound(dllm: Dllm, folder: Path) -> None:
    flags = ["--prompt-ids", "5,6,7", "--answer-ids", "8,9,10,11", "--samples", 12, "--batch", 4, "--seed", 3]
    found = dllm("score", "-m", folder, *flags, "--json").json
    model = load(str(folder), backend="numpy").model
    expected = log_likelihood(model, [5, 6, 7], [8, 9, 10, 11], 12, 4, seed=3)
    assert len(expected.losses) == 3
    assert found["log_likelihood"] == expected.log_likelihood
    assert found["standard_error"] == pytest.approx(np.std(expected.losses, ddof=1) / np.sqrt(3))
    assert found["per_token"] == expected.log_likelihood / 4
    assert found["perplexity"] == pytest.approx(np.exp(-expected.log_likelihood / 4))
    guided = dllm("score", "-m", folder, *flags, "--cfg-scale", 1.5, "--json").json
    assert (
        guided["log_likelihood"] == log_likelihood(model, [5, 6, 7], [8, 9, 10, 11], 12, 4, 1.5, seed=3).log_likelihood
    )
    plain = dllm("score", "-m", folder, *flags)
    assert (plain.code, plain.err) == (0, "")
    assert f"{expected.log_likelihood:.4f} nats" in plain.out
    assert f"{expected.standard_error:.4f}" in plain.out


def test_one_batch_has_no_standard_error(dllm: Dllm, folder: Path) -> None:
    flags = ["-m", folder, "--prompt-ids", "5", "--answer-ids", "8", "--samples", 4]
    assert dllm("score", *flags, "--json").json["standard_error"] is None
    assert "unknown" in dllm("score", *flags).out


def test_greedy(dllm: Dllm, folder: Path) -> None:
    own, _ = greedy_suffix(load(str(folder), backend="numpy").model, [5, 6], 3)
    flags = ["-m", folder, "--prompt-ids", "5,6", "--samples", 1, "--greedy"]
    same = dllm("score", *flags, "--answer-ids", ",".join(map(str, own)), "--json").json
    assert same["greedy"] == {"match": True, "tokens": own, "text": None}
    other = dllm("score", *flags, "--answer-ids", "1,2,3")
    assert f"another answer: {','.join(map(str, own))}" in other.out


def test_texts_through_the_template(dllm: Dllm, spoken: Path, base: Path) -> None:
    prompt = dllm("tokenize", "-m", spoken, "hi", "--chat", "--json").json["ids"]
    answer = [CHARACTERS.index(c) for c in "yo"]
    by_text = dllm("score", "-m", spoken, "hi", "yo", "--samples", 2, "--json").json
    ids = ["--prompt-ids", ",".join(map(str, prompt)), "--answer-ids", ",".join(map(str, answer))]
    by_ids = dllm("score", "-m", spoken, *ids, "--samples", 2, "--json").json
    assert by_text["log_likelihood"] == by_ids["log_likelihood"]
    assert (by_text["prompt_tokens"], by_text["answer_ids"]) == (len(prompt), answer)
    raw = dllm("score", "-m", spoken, "hi ", "yo", "--samples", 2, "--no-chat", "--json").json
    assert (raw["prompt_tokens"], raw["answer_ids"]) == (2, [0, *answer])
    warned = dllm("score", "-m", base, "hi", "yo", "--samples", 1)
    assert warned.code == 0
    assert "no chat template" in warned.err


SCORES = [
    ([], ["PROMPT"]),
    (["one"], ["ANSWER"]),
    (["a", "b", "c"], ["'c'"]),
    (["a", ""], ["empty"]),
    (["a", "b" * 200], ["answer (200)", "160"]),
    (["a", "b", "--samples", "20"], ["--samples 20", "--batch 16", "16"]),
    (["a", "b", "--samples", "0"], ["--samples"]),
    (["a", "b", "--cfg-scale", "-1"], ["--cfg-scale", "-1"]),
    (["a", "b", "--seed", "-1"], ["--seed", "-1"]),
    (["a", "--answer-ids", "1,99"], ["99", "98"]),
    (["a", "b", "--prompt-ids", "1"], ["'b'"]),
]


@pytest.mark.parametrize(("arguments", "words"), SCORES, ids=[" ".join(s[0])[:30] for s in SCORES])
def test_score_refuses(dllm: Dllm, spoken: Path, arguments: list[str], words: list[str]) -> None:
    assert_refused(dllm("score", "-m", spoken, *arguments), 2, *words)


def test_errors_as_json(dllm: Dllm, spoken: Path) -> None:
    result = dllm("fill", "-m", spoken, "none", "--json")
    assert (result.code, result.out) == (2, "")
    assert json.loads(result.err)["error"]["type"] == "UsageError"
