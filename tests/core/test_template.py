"""Templates: what is a mask, what stays, and that filling costs no more passes than there are masks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_core import load, template
from dllm_core.api import Engine
from dllm_core.decoding.canvas import Canvas
from dllm_core.decoding.loop import decode_canvas
from dllm_core.decoding.options import DecodeOptions
from dllm_core.errors import UsageError
from dllm_core.testing import random_model

MODEL = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40, max_length=64)
MASK, EOS = MODEL.facts.mask_id, MODEL.facts.eos_id
ENGINE = Engine(MODEL, None, {}, 0.0, "random")


class Letters:
    """One token a letter, bos in front, and a decoder that drops a blank at the very start."""

    mask_id = MASK

    def encode(self, text, bos=True):
        return [1] * bos + [10 + "abcdefghijklmno .".index(c) for c in text]

    def decode(self, ids):
        return "".join("abcdefghijklmno ."[i - 10] for i in ids if 10 <= i < 27).removeprefix(" ")

    def token_text(self, token):
        return "<mask>"


def test_parts_of_a_template():
    found = template.from_text("ab[MASK:3]c[MASK]<mask>.", Letters(), 64)
    assert found.ids == [1, 10, 11, MASK, MASK, MASK, 12, MASK, MASK, 26]
    assert found.masks == 5
    assert template.from_text("[MASK: 02 ]", Letters(), 64).ids == [1, MASK, MASK]


def test_literal_text_is_kept_and_a_first_blank_is_not_lost():
    found = template.from_text("[MASK:2].  a[MASK:2]", Letters(), 64)
    canvas = [1, 25, 10, *found.ids[3:7], 25, EOS]
    assert found.text(canvas, Letters()) == "a.  a "  # the decoder's own habit at the very start, nowhere else


@pytest.mark.parametrize("mark", ["[MASK:0]", "[MASK:]", "[MASK:-1]", "[MASK:x]", "[MASK:1.5]", "[MASK:\u0663]"])
def test_marks_that_are_none(mark):
    with pytest.raises(UsageError) as error:
        template.from_text(f"ab{mark}", Letters(), 64)
    assert mark.encode("unicode_escape").decode() in str(error.value).encode("unicode_escape").decode()


@pytest.mark.parametrize("text", ["[MASK:65]", "[MASK:" + "9" * 40 + "]", "[MASK:60]abcd", "[MASK:40][MASK:40]"])
def test_more_than_the_model_holds(text):
    with pytest.raises(UsageError, match="64"):
        template.from_text(text, Letters(), 64)


def test_brackets_that_mean_nothing_are_text():
    assert list(template.split("[MASKED] [mask] [MASK", "<mask>", 9)) == ["[MASKED] [mask] [MASK"]


canvases = st.lists(st.sampled_from([3, 7, 21, EOS, MASK, MASK]), min_size=2, max_size=20).filter(lambda t: MASK in t)
SETTINGS = [
    {},
    {"commit": "threshold", "threshold": 0.2},
    {"cache": "dual"},
    {"cache": "prefix"},
    {"cache": "interstep", "refresh": 2},
    {"schedule": "cosine"},
    {"schedule": "timesteps"},
    {"revoke": "confidence", "revoke_below": 0.3},
    {"strategy": "careful"},
    {"cfg_scale": 1.0},
    {"temperature": 1.0, "remasking": "random"},
]


@given(canvases, st.sampled_from(SETTINGS), st.sampled_from([None, 1, 3]))
@settings(max_examples=120, deadline=None)
def test_frozen_tokens_stay_and_masks_are_filled(ids, given_settings, block_length):
    seen = []
    filled = ENGINE.fill(ids, on_step=seen.append, block_length=block_length, suppress_ids=(MASK,), **given_settings)
    for step in seen:
        assert [t for t, before in zip(step.canvas[0].tolist(), ids, strict=True) if before != MASK] == [
            t for t in ids if t != MASK
        ]
    assert (filled.masks_left, filled.finish_reason, filled.canvas_tokens) == (0, "filled", ids.count(MASK))
    assert filled.prompt_tokens == len(ids) - ids.count(MASK)
    assert filled.useful_tokens == sum(a == MASK and b != EOS for a, b in zip(ids, filled.tokens, strict=True))
    if "revoke" not in given_settings and "strategy" not in given_settings:
        assert filled.forward_passes <= ids.count(MASK)


def test_one_token_a_step_by_default():
    ids = [3, MASK, *[7] * 30, MASK, 4, MASK]
    assert ENGINE.fill(ids).forward_passes == 3
    assert ENGINE.fill(ids, block_length=4).forward_passes == 3  # blocks without masks cost nothing
    assert ENGINE.fill(ids, steps=1).forward_passes == 1
    assert ENGINE.fill(ids, steps=9).forward_passes == 3


def test_a_plain_canvas_still_takes_the_authors_passes():
    canvas = Canvas.start([[3]], 4, MASK)
    assert len(list(decode_canvas(MODEL, canvas, DecodeOptions(max_tokens=4, block_length=4, steps=9)))) == 9


@pytest.mark.parametrize(
    "options", [{"eos": "stop"}, {"stop": ("x",)}, {"grow": True}, {"max_tokens": 3}], ids=lambda o: next(iter(o))
)
def test_a_template_has_its_own_end(options):
    with pytest.raises(UsageError, match="does not go with a template"):
        ENGINE.fill([3, MASK], **options)


def test_a_strategy_may_stop_at_the_end_token_and_a_template_does_not():
    bent = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40)
    bent.head.weight[EOS] *= 9  # end tokens everywhere
    filled = Engine(bent, None, {}, 0.0, "bent").fill([3, MASK, 5, MASK, MASK], strategy="fast")
    assert filled.tokens[0] == 3
    assert filled.tokens[2] == 5
    assert EOS in filled.tokens
    assert filled.finish_reason == "filled"


def test_greedy_and_score_take_ids():
    own = ENGINE.greedy([3, 4], [0, 0, 0]).tokens
    assert ENGINE.greedy([3, 4], own).match
    assert not ENGINE.greedy([3, 4], [*own[:-1], (own[-1] + 1) % 38]).match
    found = ENGINE.score([3, 4], own, samples=8, batch=4, seed=2)
    assert found == ENGINE.score([3, 4], own, samples=8, batch=4, seed=2)
    assert np.isfinite(found.log_likelihood)
    for answer in ([], [3] * 80, [99]):
        with pytest.raises(UsageError):
            ENGINE.score([3], answer)


def test_blanks_between_prompt_and_answer_belong_to_the_answer():
    engine = Engine(MODEL, SimpleNamespace(**{k: getattr(Letters(), k) for k in ("encode", "decode")}), {}, 0.0, "x")
    engine.tokenizer.chat_template = None
    prompt, answer = engine.encode_pair("ab  ", "c", chat=True)
    assert prompt == [1, 10, 11]
    assert answer == [25, 25, 12]  # no second bos


@pytest.mark.parametrize("cache", ["dual", "prefix"])
@pytest.mark.parametrize("schedule", ["timesteps", "linear"])
def test_blocks_of_a_shifted_model_that_start_with_text_are_filled(cache, schedule):
    engine = load(str(Path(__file__).parents[1] / "golden" / "dream_gqa"), backend="numpy", scheme="f32", threads=1)
    mask = engine.model.facts.mask_id
    ids = [3, mask, 7, 5, 5, mask, 5, mask, mask, 7, 3, mask]
    filled = engine.fill(ids, cache=cache, schedule=schedule, block_length=3, suppress_ids=(mask,))
    assert filled.masks_left == 0
    assert [t for t, before in zip(filled.tokens, ids, strict=True) if before != mask] == [i for i in ids if i != mask]


@pytest.mark.parametrize(
    "call",
    [
        lambda: ENGINE.generate_batch("abc", max_tokens=2),
        lambda: ENGINE.stream("abc", ENGINE.options(max_tokens=2)),
        lambda: ENGINE.stream(["abc"], ENGINE.options(max_tokens=2)),
    ],
)
def test_one_text_is_no_list_of_prompts(call):
    with pytest.raises(UsageError, match=r"not (one )?text") as error:
        call()
    assert error.value.hint
