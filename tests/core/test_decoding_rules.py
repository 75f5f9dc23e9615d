"""Schedules, commits, edits of the vocabulary: small rules against results computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_core.decoding import commit, confidence, schedule
from dllm_core.decoding.canvas import Canvas, full_rows, prompt_positions
from dllm_core.decoding.confidence import Edits, Sampling
from dllm_core.decoding.options import DecodeOptions
from dllm_core.errors import UsageError

F = np.float32

# ---- schedules ----


@pytest.mark.parametrize(
    ("total", "parts", "want"),
    [
        (24, 7, [4, 4, 4, 3, 3, 3, 3]),
        (8, 5, [2, 2, 2, 1, 1]),
        (8, 12, [1] * 8 + [0] * 4),
        (0, 3, [0, 0, 0]),
        (6, 3, [2] * 3),
    ],
)
def test_even_split(total, parts, want):
    assert schedule.even_split(total, parts) == want


@pytest.mark.parametrize(
    ("length", "block", "want"),
    [(8, 4, [(0, 4), (4, 8)]), (10, 4, [(0, 4), (4, 8), (8, 10)]), (3, 32, [(0, 3)]), (1, 1, [(0, 1)])],
)
def test_blocks_and_the_last_one_shorter(length, block, want):
    assert schedule.block_bounds(length, block) == want


@pytest.mark.parametrize(
    ("total", "lengths", "want"),
    [
        (15, [8, 8, 8], [5, 5, 5]),  # divides: the authors' equal shares
        (10, [4, 4, 2], [4, 4, 2]),  # as many steps as tokens: one token a step
        (65, [32, 32, 1], [32, 32, 1]),
        (3, [32, 32, 1], [1, 1, 1]),  # every block has a step
        (4, [32, 32, 1], [2, 1, 1]),
        (5, [32, 32, 1], [2, 2, 1]),
        (7, [8, 8, 8], [3, 2, 2]),  # the rest goes to the earlier blocks
        (20, [4, 4, 2], [8, 8, 4]),  # more steps than tokens
    ],
)
def test_steps_of_each_block(total, lengths, want):
    assert schedule.spread_steps(total, lengths) == want


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_steps_add_up_and_are_spread_evenly(length, block, extra):
    lengths = [b - a for a, b in schedule.block_bounds(length, block)]
    assert sum(lengths) == length
    steps = schedule.spread_steps(len(lengths) + extra, lengths)
    assert sum(steps) == len(lengths) + extra
    assert min(steps) >= 1
    full = steps[:-1] if lengths[-1] < block else steps
    assert not full or max(full) - min(full) <= 1
    assert full == sorted(full, reverse=True)
    if extra == length - len(lengths):
        assert steps == lengths


# ---- commits ----


@pytest.mark.parametrize(
    ("values", "k", "want"),
    [
        ([0.1, 0.9, 0.5], 2, [1, 2]),
        ([0.5, 0.5, 0.5, 0.5], 2, [0, 1]),  # ties go to the lower index
        ([0.2, 0.7, 0.7, 0.7], 2, [1, 2]),
        ([0.0, 0.0, 0.3], 2, [0, 2]),
        ([0.3, 0.1], 5, [0, 1]),  # fewer candidates than the quota
        ([0.3, 0.1], 0, []),
        ([], 3, []),
    ],
)
def test_quota(values, k, want):
    found = commit.quota(np.array(values, F), k)
    assert found.tolist() == want
    assert found.dtype == np.int64


# ---- proposals ----


def propose(logits, edits=Edits(), temperature=0.0, noise=None):  # noqa: B008 (frozen)
    found = confidence.propose_from_logits(NumpyBackend(1), np.array(logits, F), edits, Sampling(temperature), noise)
    return found.token, found.probability


def softmax(row):
    e = np.exp(np.array(row, np.float64) - max(row))
    return e / e.sum()


def test_the_argmax_and_its_probability():
    tokens, sure = propose([[1, 3, 2], [0, -1, 4]])
    assert tokens.tolist() == [1, 2]
    np.testing.assert_allclose(sure, [softmax([1, 3, 2])[1], softmax([0, -1, 4])[2]], rtol=1e-6)


def test_the_lowest_id_wins_a_tie():
    assert propose([[2, 5, 5, 5]])[0].tolist() == [1]


def test_a_banned_token_is_never_chosen_and_has_no_probability():
    tokens, sure = propose([[1, 9, 2]], Edits(banned=(1,)))
    assert tokens.tolist() == [2]
    np.testing.assert_allclose(sure, softmax([1, 2])[1:], rtol=1e-6)
    with_noise, _ = propose([[1, 9, 2]], Edits(banned=(1,)), 1.0, np.full((1, 3), 0.5))
    assert with_noise.tolist() == [2]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_an_unsure_token_may_be_chosen_but_counts_as_zero(temperature):
    """The authors' alias makes this so at temperature 0 only; here the option means the same at every one."""
    noise = np.full((2, 4), 0.5)
    tokens, sure = propose([[1, 9, 2, 3], [1, 2, 4, 9]], Edits(unsure=(1, 0)), temperature, noise)
    assert tokens.tolist() == [1, 3]
    assert sure[0] == 0
    np.testing.assert_allclose(sure[1], softmax([4, 9])[1], rtol=1e-6)


def test_both_edits_together():
    tokens, sure = propose([[1, 9, 2, 3]], Edits(banned=(1,), unsure=(1, 3)))
    assert tokens.tolist() == [3]
    assert sure.tolist() == [0]


def test_gumbel_by_hand():
    logits, u = [[0.0, 1.0, 0.5]], np.array([[0.9, 0.2, 0.6]])
    score = np.exp(np.float64(logits[0])) / (-np.log(u[0])) ** 0.8  # the authors' form
    tokens, sure = propose(logits, temperature=0.8, noise=u)
    assert tokens.tolist() == [int(score.argmax())] == [0]
    np.testing.assert_allclose(sure, softmax(logits[0])[:1], rtol=1e-6)  # the clean probability


def test_a_uniform_of_zero_is_never_chosen():
    assert propose([[50.0, 0.0]], temperature=1.0, noise=np.array([[0.0, 1e-300]]))[0].tolist() == [1]


def test_guidance():
    found = confidence.guide(np.array([[3.0]], F), np.array([[1.0]], F), 0.5)
    assert found.tolist() == [[1 + 1.5 * 2]]


# ---- canvas ----


def test_canvas():
    canvas = Canvas.start([[1, 2], [3], []], 2, 9)
    assert canvas.ids.tolist() == [1, 2, 9, 9, 3, 9, 9, 9, 9]
    assert canvas.offsets.tolist() == [0, 4, 7, 9]
    assert canvas.masked(0, 3).tolist() == [2]
    assert canvas.masked(2, 9).tolist() == [0, 1]
    assert prompt_positions(canvas).tolist() == [True, True, False, False, True, False, False, False, False]
    assert canvas.rows().positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1]


def test_a_mask_in_the_prompt_is_no_prompt():
    assert prompt_positions(Canvas.start([[9, 1]], 1, 9)).tolist() == [False, True, False]


def test_full_rows_write_every_slot():
    rows = full_rows(np.array([0, 2, 2, 5]))
    assert rows.positions.tolist() == [0, 1, 0, 1, 2]
    assert rows.slots.tolist() == [0, 1, 2, 3, 4]
    assert len(rows) == 5


# ---- options ----


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"max_tokens": -3},
        {"max_tokens": True},
        {"max_tokens": 2.5},
        {"steps": 0},
        {"block_length": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"cfg_scale": -1},
        {"cfg_scale": "2"},
        {"remasking": "high"},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_a_bad_setting_is_named_with_its_value(bad):
    with pytest.raises(UsageError) as error:
        DecodeOptions.build(bad)
    (key, value), *_ = bad.items()
    assert key.replace("_", "-") in error.value.message
    assert repr(value) in error.value.message
    assert error.value.hint


def test_fewer_steps_than_blocks():
    with pytest.raises(UsageError) as error:
        DecodeOptions(max_tokens=64, block_length=8, steps=7)
    assert "7" in error.value.message
    assert "8" in error.value.hint
    assert DecodeOptions(max_tokens=64, block_length=8, steps=8).total_steps == 8


def test_given_over_defaults():
    defaults = {"max_tokens": 48, "steps": 24, "block_length": 8, "temperature": 0.5, "unrelated": 1}
    assert DecodeOptions.build({}, defaults) == DecodeOptions(48, 24, 8, 0.5)
    assert DecodeOptions.build({"temperature": None, "seed": 7}, defaults) == DecodeOptions(48, 24, 8, 0.5, seed=7)
    # the default steps belong to the default canvas
    assert DecodeOptions.build({"max_tokens": 5}, defaults) == DecodeOptions(5, None, 8, 0.5)
    assert DecodeOptions.build({"max_tokens": 5, "steps": 3}, defaults) == DecodeOptions(5, 3, 8, 0.5)
    with pytest.raises(UsageError, match="colour"):
        DecodeOptions.build({"colour": 1})
