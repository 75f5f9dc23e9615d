"""Likelihood beyond the golden cases: counts by hand, draws, settings that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend

from dllm_core.decoding import likelihood
from dllm_core.errors import UsageError
from dllm_core.testing import random_model

MODEL = random_model(NumpyBackend(1), layers=1, width=32, mlp=48, vocab=40)
MASK = MODEL.facts.mask_id


@pytest.mark.parametrize(
    ("first", "length", "rows", "want"),
    [
        (1, 4, 4, [1, 2, 3, 4]),
        (3, 4, 4, [3, 4, 1, 2]),  # wraps
        (2, 8, 4, [2, 4, 6, 8]),
        (1, 2, 4, [1, 2, 2, 2]),  # 1, 1.5, 2, 2.5: halves to even
        (2, 2, 4, [2, 2, 1, 2]),  # 2, 2.5, 3, 3.5 -> 2, 2, 3, 4 -> wrapped
        (5, 7, 1, [5]),
    ],
)
def test_masked_counts(first, length, rows, want):
    assert likelihood.masked_counts(first, length, rows).tolist() == want


class Fixed:
    """Masks the first tokens of the answer, as many as `count`."""

    def __init__(self, count):
        self.count = count

    def first_count(self, iteration, length):
        return self.count

    def permutation(self, iteration, row, length):
        return np.arange(length)


def log_softmax(ids):
    offsets = np.array([0, len(ids)])
    kv = MODEL.backend.allocate_kv(MODEL.facts.layers, len(ids), MODEL.facts.kv_heads, MODEL.facts.head_dim)
    from dllm_core.decoding.canvas import full_rows

    logits = MODEL.backend.linear(MODEL.hidden(np.array(ids), kv, full_rows(offsets)), MODEL.head).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_one_iteration_by_hand():
    prompt, answer = [3, 4, 5], [6, 7, 8, 9]
    found = likelihood.log_likelihood(MODEL, prompt, answer, samples=1, batch=1, draws=Fixed(2))
    rows = log_softmax([3, 4, 5, MASK, MASK, 8, 9])
    want = (rows[3, 6] + rows[4, 7]) / (2 / 4)
    np.testing.assert_allclose(found.log_likelihood, want, rtol=1e-5)
    assert found.standard_error == 0


def test_a_mask_in_the_data_counts_as_masked():
    """As in the authors' code: masks are found in the noisy copy, wherever they came from, and divided by its ratio."""
    found = likelihood.log_likelihood(MODEL, [3, MASK], [6, 7], samples=1, batch=1, draws=Fixed(1))
    rows = log_softmax([3, MASK, MASK, 7])
    np.testing.assert_allclose(found.log_likelihood, (rows[1, MASK] + rows[2, 6]) / 0.5, rtol=1e-5)


def test_all_masked_tokens_and_no_prompt():
    found = likelihood.log_likelihood(MODEL, [], [6, 7], samples=1, batch=1, draws=Fixed(2))
    rows = log_softmax([MASK, MASK])
    np.testing.assert_allclose(found.log_likelihood, rows[0, 6] + rows[1, 7], rtol=1e-5)


def test_the_seed_decides():
    def value(seed, **given):
        return likelihood.log_likelihood(
            MODEL, [1, 2], [3, 4, 5, 6, 7], **{"samples": 8, "batch": 4, "seed": seed, **given}
        )

    assert value(1) == value(1)
    assert value(1) != value(2)
    assert len(value(1).losses) == 2
    # more samples keep the first ones
    assert value(1, samples=16).losses[:2] == value(1).losses
    assert value(1).standard_error > 0


def test_draws_are_permutations_and_counts_in_range():
    draws = likelihood.SeededDraws(0)
    counts = {draws.first_count(i, 5) for i in range(200)}
    assert counts == {1, 2, 3, 4, 5}
    assert sorted(draws.permutation(0, 1, 9).tolist()) == list(range(9))
    assert draws.permutation(0, 1, 9).tolist() != draws.permutation(0, 2, 9).tolist()


@pytest.mark.parametrize(
    ("answer", "settings", "named"),
    [([], {}, "empty"), ([1], {"samples": 3, "batch": 4}, "samples=3"), ([1], {"batch": 0}, "batch=0")],
)
def test_bad_settings(answer, settings, named):
    with pytest.raises(UsageError, match=named) as error:
        likelihood.log_likelihood(MODEL, [1], answer, **settings)
    assert error.value.hint


def test_greedy_suffix_commits_the_surest_first():
    tokens, trace = likelihood.greedy_suffix(MODEL, [1, 2], 4)
    assert [int((canvas == MASK).sum()) for canvas in trace] == [4, 3, 2, 1, 0]
    first = np.exp(log_softmax([1, 2, *[MASK] * 4])[2:])
    assert int(np.flatnonzero(trace[1] != trace[0])[0]) == 2 + int(first.max(axis=1).argmax())
    assert trace[-1].tolist() == [1, 2, *tokens]
