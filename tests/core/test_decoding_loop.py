"""The decoding loop on a tiny random model: what holds for every prompt, length, schedule and seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_core.decoding import schedule
from dllm_core.decoding.loop import decode
from dllm_core.decoding.options import DecodeOptions
from dllm_core.errors import CheckpointError
from dllm_core.models.llada import Llada
from dllm_core.testing import random_model
from dllm_core.testing.random_model import random_checkpoint

MODEL = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40)
MASK, EOS = MODEL.facts.mask_id, MODEL.facts.eos_id
PROMPTS = [[5, 17, 3], [9, 4, 8, 7, 21, 3, 6], [2], [11, 35]]  # none empty: a canvas of masks alone is all ties
SETTINGS = [
    {},
    {"temperature": 0.9},
    {"remasking": "random"},
    {"cfg_scale": 1.5},
    {"temperature": 0.5, "remasking": "random", "cfg_scale": 0.5, "logits_eos_inf": True},
    {"confidence_eos_eot_inf": True},
]


def run(prompts, **given):
    return list(decode(MODEL, prompts, DecodeOptions(**{"max_tokens": 10, "block_length": 4, **given})))


def final(prompts, **given):
    return [canvas.tolist() for canvas in run(prompts, **given)[-1].canvas]


@pytest.mark.parametrize("given_settings", SETTINGS, ids=str)
def test_several_prompts_at_once_and_each_with_the_others_changed(given_settings):
    """A text does not depend on the prompts around it; alone it is the first of its batch."""
    together = final(PROMPTS, **given_settings)
    assert final(PROMPTS[:1], **given_settings) == together[:1]
    others = [PROMPTS[0], [1, 2], PROMPTS[2], [30] * 9]
    changed = final(others, **given_settings)
    assert (changed[0], changed[2]) == (together[0], together[2])
    if not given_settings.get("temperature") and given_settings.get("remasking") != "random":
        assert [final([p], **given_settings)[0] for p in PROMPTS] == together


def test_two_samples_of_one_prompt_differ():
    a, b = final([PROMPTS[0]] * 2, temperature=1.5)
    assert a != b


@pytest.mark.parametrize("given_settings", SETTINGS, ids=str)
def test_scoring_all_rows_changes_nothing(given_settings):
    plain, whole = run(PROMPTS, **given_settings), run(PROMPTS, all_rows=True, **given_settings)
    for a, b in zip(plain, whole, strict=True):
        assert [c.tolist() for c in a.canvas] == [c.tolist() for c in b.canvas]


def test_the_seed_decides_and_nothing_else_does():
    assert final(PROMPTS, temperature=1.0, seed=3) == final(PROMPTS, temperature=1.0, seed=3)
    assert final(PROMPTS, temperature=1.0, seed=3) != final(PROMPTS, temperature=1.0, seed=4)
    assert final(PROMPTS, seed=3) == final(PROMPTS, seed=4)  # nothing is random at temperature 0


def test_one_token_a_step_also_where_the_last_block_is_shorter():
    steps = run([[1, 2, 3]], max_tokens=10, block_length=4)
    assert [step.block for step in steps] == [0] * 4 + [1] * 4 + [2] * 2
    assert [len(step.token) for step in steps] == [1] * 10
    for step in steps:
        start = 3 + 4 * step.block
        assert start <= step.position[0] < min(start + 4, 13)


def test_steps_spread_over_blocks_and_tokens_over_steps():
    steps = run([[1]], max_tokens=10, block_length=4, steps=5)
    assert [step.block for step in steps] == [0, 0, 1, 1, 2]
    assert [len(step.token) for step in steps] == [2, 2, 2, 2, 2]
    steps = run([[1]], max_tokens=5, block_length=5, steps=3)
    assert [len(step.token) for step in steps] == [2, 2, 1]


def test_more_steps_than_tokens_cost_passes_that_commit_nothing():
    steps = run([[1, 2]], max_tokens=2, block_length=2, steps=5)
    assert [len(step.token) for step in steps] == [1, 1, 0, 0, 0]
    assert steps[1].canvas[0].tolist() == steps[4].canvas[0].tolist()
    assert MASK not in steps[1].canvas[0].tolist()


def test_masks_inside_the_prompt_compete_but_add_no_quota():
    steps = run([[1, MASK, 2]], max_tokens=4, block_length=4)
    assert sum(len(step.token) for step in steps) == 4
    assert steps[-1].canvas[0].tolist().count(MASK) == 1


def test_a_chosen_mask_counts_and_stays_masked():
    """Nothing stops the argmax from being the mask, as in the authors' code."""
    model = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40)
    weight = model.head.weight
    weight[MASK] = 0  # then make the mask win wherever the other logits are negative
    weight[:] = np.where(np.arange(40)[:, None] == MASK, 0, -np.abs(weight) * 1e-3)
    steps = list(decode(model, [[3, 4]], DecodeOptions(max_tokens=4, block_length=4)))
    masks = [int((step.canvas[0] == MASK).sum()) for step in steps]
    assert len(steps) == 4
    assert all(len(step.token) == 1 for step in steps)
    assert masks[-1] == 4 - sum(int(step.token[0] != MASK) for step in steps)


def test_no_end_token_with_logits_eos_inf():
    bent = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40)
    bent.head.weight[EOS] *= 5  # end tokens everywhere
    plain = [int(t) for s in decode(bent, [[1, 2]], DecodeOptions(max_tokens=12, block_length=12)) for t in s.token]
    assert EOS in plain
    for temperature in (0.0, 0.7):
        options = DecodeOptions(max_tokens=12, block_length=12, logits_eos_inf=True, temperature=temperature)
        assert EOS not in [int(t) for step in decode(bent, [[1, 2]], options) for t in step.token]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_end_tokens_come_last_with_confidence_eos_eot_inf(temperature):
    bent = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40)
    bent.facts = replace(bent.facts, eot_id=7)
    bent.head.weight[[EOS, 7]] *= 3
    options = DecodeOptions(max_tokens=12, block_length=12, confidence_eos_eot_inf=True, temperature=temperature)
    steps = list(decode(bent, [[1, 2]], options))
    ends = [step.token[0] in (EOS, 7) for step in steps]
    assert any(ends)
    for step, end in zip(steps, ends, strict=True):
        assert (step.confidence[0] == 0) == end


def test_a_step_tells_what_it_did():
    before = [1, 2, *[MASK] * 6]
    for i, step in enumerate(run([[1, 2]], max_tokens=6, block_length=3, steps=4)):
        assert step.index == i
        assert step.rows_run == 8
        assert step.seconds >= 0
        after = step.canvas[0].tolist()
        changed = [p for p in range(8) if before[p] != after[p]]
        written = [int(p) for p, t in zip(step.position, step.token, strict=True) if t != MASK]
        assert changed == written
        assert [after[p] for p in step.position] == step.token.tolist()
        assert np.all((step.confidence > 0) & (step.confidence <= 1))
        before = after


def test_a_canvas_that_was_yielded_does_not_change():
    steps = run(PROMPTS)
    assert [int((s.canvas[0] == MASK).sum()) for s in steps] == list(range(9, -1, -1))


cases = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 14),
        "block_length": st.integers(1, 16),
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 0.6]),
        "remasking": st.sampled_from(["low_confidence", "random"]),
        "cfg_scale": st.sampled_from([0.0, 1.0]),
    }
)
prompt_lists = st.lists(st.lists(st.integers(0, MASK), max_size=6), min_size=1, max_size=3)


@given(prompt_lists, cases, st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_properties_of_every_decode(prompts, chosen, extra):
    blocks = schedule.block_bounds(chosen["max_tokens"], chosen["block_length"])
    options = DecodeOptions(steps=len(blocks) + extra, **chosen)
    canvases = [np.array([*p, *[MASK] * options.max_tokens]) for p in prompts]
    steps = 0
    for step in decode(MODEL, prompts, options):
        steps += 1
        assert [len(c) for c in step.canvas] == [len(c) for c in canvases]
        for s, (before, after) in enumerate(zip(canvases, step.canvas, strict=True)):
            # only masks change, what is committed stays, masks never grow
            assert np.array_equal(after[before != MASK], before[before != MASK])
            # and nothing right of the block is touched
            end = len(prompts[s]) + blocks[step.block][1]
            assert np.all(after[end:] == MASK)
            position = step.position[step.sequence == s]
            assert np.all(before[position] == MASK)
            assert len(np.unique(position)) == len(position)
        canvases = step.canvas
    assert steps == options.total_steps
    for prompt, canvas in zip(prompts, canvases, strict=True):
        if MASK not in prompt and MASK not in canvas[len(prompt) :]:
            assert canvas[: len(prompt)].tolist() == prompt


@pytest.mark.parametrize("tensor", ["blocks.1.attn_norm.weight", "ff_out.weight"])
@pytest.mark.parametrize("chosen", [{}, {"temperature": 0.7}, {"cfg_scale": 1.0}])
def test_a_model_whose_logits_are_no_numbers_is_refused(tensor, chosen):
    """Damage in a layer or in the head; before, token 0 was written to the end."""
    config, tensors = random_checkpoint()
    tensors.arrays[f"model.transformer.{tensor}"].flat[3] = np.nan
    model = Llada(config, tensors, NumpyBackend(1), "f32")
    with pytest.raises(CheckpointError, match="no numbers"):
        list(decode(model, [[5, 6]], DecodeOptions(max_tokens=4, steps=4, block_length=4, **chosen)))
