"""Commit rules, schedules, filters and revokes: small rules against results computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_core.decoding import commit, revoke, schedule
from dllm_core.decoding.confidence import Proposals, Sampling, confidence_of, filtered
from dllm_core.decoding.options import DecodeOptions
from dllm_core.decoding.strategies import STRATEGIES
from dllm_core.errors import UsageError

F = np.float32


def floats(*values):
    return np.array(values, F)


# ---- commit rules ----


@pytest.mark.parametrize(
    ("confidence", "least", "want"),
    [
        ([0.95, 0.2, 0.91, 0.9], 0.9, [0, 2, 3]),  # at the threshold counts
        ([0.1, 0.4, 0.3], 0.9, [1]),  # always the best
        ([0.3, 0.4, 0.4], 0.9, [1]),  # the lower index on a tie
        ([0.1, 0.2], 0.0, [0, 1]),
        ([], 0.5, []),
    ],
)
def test_threshold(confidence, least, want):
    assert commit.threshold(floats(*confidence), least).tolist() == want


@pytest.mark.parametrize(
    ("confidence", "f", "want"),
    [
        # the j-th best must reach 1 - f / (j + 1): with f = 1 that is 2/3, 3/4, 4/5
        ([0.9, 0.8, 0.7, 0.6], 1, [0, 1]),
        ([0.6, 0.9, 0.7, 0.8], 1, [1, 3]),
        ([0.9, 0.6, 0.5, 0.4], 1, [0]),
        ([0.2, 0.1, 0.05, 0.01], 1, [0]),  # the best always
        ([0.99, 0.98, 0.97, 0.96], 1, [0, 1, 2, 3]),
        ([0.9, 0.8, 0.7], 1, [0, 1, 2]),  # the authors' quirk: only the last one fails, so all are taken
        ([0.9, 0.1], 1, [0, 1]),  # the same with two
        ([0.9, 0.6, 0.5], 1, [0]),  # not where an earlier one fails too
        ([0.1], 1, [0]),
        ([0.9, 0.9, 0.9], 0, [0]),  # nothing reaches 1
        ([0.1, 0.1, 0.1], 5, [0, 1, 2]),  # everything reaches less than 0
        ([], 1, []),
    ],
)
def test_factor(confidence, f, want):
    assert commit.factor(floats(*confidence), f).tolist() == want


ENTROPY = floats(0.5, 0.1, 0.2, 0.05)


@pytest.mark.parametrize(
    ("entropy", "gamma", "want"),
    [
        # ascending 0.05 0.1 0.2 0.5: without the largest of each set the sums are 0, 0.05, 0.15, 0.35
        (ENTROPY, 0.3, [1, 2, 3]),
        (ENTROPY, 0.1, [1, 3]),
        (ENTROPY, 0.0, [3]),
        (ENTROPY, 1.0, [0, 1, 2, 3]),
        (floats(0, 0.3, 0), 0.0, [0, 1, 2]),  # certain ones add nothing
        (floats(), 1.0, []),
    ],
)
def test_entropy_bound(entropy, gamma, want):
    assert commit.entropy_bound(entropy, gamma).tolist() == want


@pytest.mark.parametrize(("gamma", "want"), [(0.15, [1, 3]), (0.2, [1, 2, 3]), (0.01, [3]), (9.0, [0, 1, 2, 3])])
def test_entropy_exit(gamma, want):
    assert commit.entropy_exit(ENTROPY, gamma).tolist() == want


E = F(np.exp(-1))  # a uniform of no effect: -ln(-ln(1/e)) = 0


@pytest.mark.parametrize(
    ("uniforms", "k", "want"),
    [
        ([E, E, E], 2, [1, 2]),
        ([0.99, E, E], 2, [0, 1]),  # + 4.6
        ([E, 0.0, E], 2, [0, 2]),  # never, before all others
        ([E, E, E], 0, []),
        ([E, E, E], 7, [0, 1, 2]),
    ],
)
def test_drawn(uniforms, k, want):
    assert commit.drawn(floats(0.2, 0.5, 0.3), k, 1.0, floats(*uniforms)).tolist() == want


def test_the_temperature_of_a_draw():
    confidence, uniforms = floats(0.2, 0.5), floats(0.6, 0.4)  # noise 0.67 and 0.09
    assert commit.drawn(confidence, 1, 1.0, uniforms).tolist() == [0]  # 0.87 over 0.59
    assert commit.drawn(confidence, 1, 0.25, uniforms).tolist() == [1]  # 1.47 under 2.09


def test_carry():
    carry = commit.Carry(masks=6, steps=3, least=0.9)
    assert carry.choose(floats(0.95, 0.5, 0.92, 0.1, 0.2, 0.3), 0).tolist() == [0, 2]  # two a step, both pass
    assert carry.choose(floats(0.8, 0.95, 0.3, 0.1), 1).tolist() == [1]  # 0.8 fails and is owed
    assert carry.choose(floats(0.5, 0.6, 0.4), 2).tolist() == [1]  # two and the owed one: the first stays
    assert carry.steps == 4
    assert carry.choose(floats(0.95, 0.2), 3).tolist() == [0]  # only what is owed is ranked
    assert carry.steps == 5
    assert carry.choose(floats(0.1), 4).tolist() == [0]
    assert carry.steps == 5


def test_carry_where_the_division_has_a_rest():
    carry = commit.Carry(masks=7, steps=3, least=0.0)
    sizes = [len(carry.choose(np.full(left, 0.5, F), step)) for step, left in enumerate((7, 4, 2))]
    assert sizes == [3, 2, 2]
    assert carry.steps == 3


confidences = st.lists(st.floats(0, 1, width=32), max_size=12).map(lambda values: np.array(values, F))


@given(confidences, st.floats(0, 1), st.floats(0, 8))
@settings(deadline=None)
def test_what_all_rules_have_in_common(values, bound, f):
    """Ascending indices without repetition, at least one, and nothing is passed over for something less sure."""
    for chosen in (
        commit.threshold(values, bound),
        commit.factor(values, f),
        commit.entropy_bound(-values, -bound),
        commit.entropy_bound(1 - values, bound),
        commit.entropy_exit(1 - values, bound),
        commit.quota(values, 1),
    ):
        assert chosen.dtype == np.int64
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert len(chosen) >= min(1, len(values))
        others = np.setdiff1d(np.arange(len(values)), chosen)
        assert not len(others) or values[others].max() <= values[chosen].min() + 1e-6


# ---- measures of confidence ----


def test_measures():
    found = Proposals(np.array([1, 2]), floats(0.7, 0.4), floats(0.5, 0.1), floats(0.2, 1.1))
    for name in ("low_confidence", "maskgit_plus", "random", "origin"):
        assert confidence_of(found, name).tolist() == floats(0.7, 0.4).tolist()
    for name in ("margin", "topk_margin"):
        assert confidence_of(found, name).tolist() == floats(0.5, 0.1).tolist()
    assert confidence_of(found, "entropy").tolist() == floats(-0.2, -1.1).tolist()


# ---- schedules ----


@pytest.mark.parametrize(
    ("total", "parts", "want"),
    [
        (8, 4, [1, 2, 2, 3]),  # 8 cos(22.5, 45, 67.5 degrees) = 7.4, 5.7, 3.06
        (4, 1, [4]),
        (2, 4, [1, 0, 1, 0]),  # 1.8, 1.4, 0.8
        (0, 3, [0, 0, 0]),
        (6, 2, [2, 4]),
    ],
)
def test_cosine(total, parts, want):
    assert schedule.cosine_split(total, parts) == want


@given(st.integers(0, 300), st.integers(1, 100))
@settings(deadline=None)
def test_splits_add_up(total, parts):
    for split in (schedule.cosine_split, schedule.even_split):
        shares = split(total, parts)
        assert sum(shares) == total
        assert len(shares) == parts
        assert min(shares) >= 0


@pytest.mark.parametrize(
    ("total", "lengths", "want"),
    [(4, [2, 0, 2], [2, 0, 2]), (3, [0, 5], [0, 3]), (7, [0, 0], [0, 0]), (1, [3, 3, 0], [1, 1, 0]), (2, [], [])],
)
def test_steps_go_where_there_is_something_to_fill(total, lengths, want):
    assert schedule.spread_steps(total, lengths) == want


def test_timesteps():
    # t = 1, 0.5005, 0.001
    np.testing.assert_allclose(schedule.timestep_share(0, 2, 1e-3), 0.4995, rtol=1e-6)
    np.testing.assert_allclose(schedule.timestep_share(1, 2, 1e-3), 1 - 0.001 / 0.5005, rtol=1e-6)
    assert schedule.timestep_count(8, 0, 2, 1e-3) == 3  # 3.996
    assert schedule.timestep_count(5, 1, 2, 1e-3) == 5  # the last step takes the rest
    assert schedule.timestep_count(3, 0, 24, 1e-3) == 0


# ---- what tokens are drawn from ----


def kept(logits, **sampling):
    before = logits.copy()
    found = filtered(logits, Sampling(**sampling))
    assert np.array_equal(logits, before)
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in found]


def test_nucleus():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.5, 0.3]], F))
    assert kept(logits, top_p=0.7) == [[0, 1], [2, 3]]  # 0.8 comes before the third
    assert kept(logits, top_p=0.9) == [[0, 1, 2], [1, 2, 3]]
    assert kept(logits, top_p=0.0) == [[0], [2]]  # the first always
    assert kept(logits, top_p=1.0) == [[0, 1, 2, 3]] * 2
    # at temperature 2 the first has 0.38 and the second 0.29
    assert kept(logits, top_p=0.6, temperature=2.0) == [[0, 1], [2, 3]]
    assert kept(logits, top_p=0.4, temperature=2.0) == [[0, 1], [2, 3]]
    assert kept(logits, top_p=0.4) == [[0], [2]]


def test_top_k():
    logits = np.array([[1, 4, 3, 2], [5, 5, 0, 5]], F)
    assert kept(logits, top_k=2) == [[1, 2], [0, 1, 3]]  # ties at the last place stay
    assert kept(logits, top_k=4) == [[0, 1, 2, 3]] * 2
    assert kept(logits, top_k=9) == [[0, 1, 2, 3]] * 2
    assert kept(logits, top_k=0) == [[0, 1, 2, 3]] * 2


def test_nucleus_comes_before_top_k():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], F))
    assert kept(logits, top_p=0.9, top_k=2) == [[0, 1]]
    assert kept(logits, top_p=0.4, top_k=3) == [[0]]


def test_a_banned_token_stays_out():
    assert kept(np.array([[-np.inf, 1, 2]], F), top_k=2, top_p=0.99) == [[1, 2]]


# ---- taking back ----


def test_doubted_tokens():
    probability, times = floats(0.2, 0.5, 0.1, 0.9), np.array([0, 0, 2, 0])
    assert revoke.below(probability, times, 0.5, 2).tolist() == [0]  # 0.5 is enough, the third was taken back twice
    assert revoke.below(probability, times, 0.5, 3).tolist() == [0, 2]
    assert revoke.below(probability, times, 0.0, 3).tolist() == []


def test_remasked_by_chance():
    uniforms, times = floats(0.05, 0.1, 0.0, 0.9), np.array([0, 0, 1, 0])
    assert revoke.remdm(uniforms, times, 0.1, 1).tolist() == [0]
    assert revoke.remdm(uniforms, times, 0.1, 2).tolist() == [0, 2]
    assert revoke.remdm(uniforms, times, 1.0, 9).tolist() == [0, 1, 2, 3]
    assert revoke.remdm(uniforms, times, 0.0, 9).tolist() == []


# ---- options and strategies ----

FAMILIES = {"llada": {}, "dream": {"schedule": "timesteps", "remasking": "entropy"}}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_valid_for_every_family(name, family):
    strategy = STRATEGIES[name]
    options = DecodeOptions.build({}, {**FAMILIES[family], **strategy.options})
    for key, value in strategy.options.items():
        assert getattr(options, key) == value
    assert strategy.summary
    if name == "reference":
        assert options == DecodeOptions.build({}, FAMILIES[family])


@pytest.mark.parametrize(
    ("given_options", "rule"),
    [
        ({"threshold": 0.5}, "threshold"),
        ({"factor": 1.5}, "factor"),
        ({"gamma": 0.2}, "entropy-bound"),
        ({"gamma": 0.2, "commit": "entropy-exit"}, "entropy-exit"),
        ({"threshold": 0.5, "factor": 1.0, "commit": "quota"}, "quota"),
        ({}, "quota"),
    ],
)
def test_a_number_implies_its_rule(given_options, rule):
    assert DecodeOptions.build(given_options).commit == rule


@pytest.mark.parametrize(
    "nonsense",
    [
        {"threshold": 0.5, "factor": 1.0},
        {"commit": "threshold", "remasking": "random"},
        {"commit": "factor", "remasking": "entropy"},
        {"remasking": "origin"},
        {"remasking": "origin", "schedule": "timesteps", "cache": "dual"},
        {"schedule": "timesteps", "commit": "factor"},
        {"schedule": "cosine", "commit": "threshold"},
        {"alg_temp": 0.5},
        {"alg_temp": 0.5, "schedule": "timesteps", "commit": "threshold"},
        {"alg_temp": 0.5, "schedule": "timesteps", "remasking": "origin"},
        {"top_p": 0.9},
        {"top_k": 5},
        {"revoke": "confidence", "cache": "dual"},
        {"revoke": "remdm", "commit": "threshold"},
        {"revoke": "remdm", "schedule": "timesteps"},
        {"grow": True},
        {"grow": True, "eos": "stop", "schedule": "timesteps"},
        {"eos": "forbid", "logits_eos_inf": True},
        {"commit": "entropy-bound", "remasking": "random"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_together(nonsense):
    with pytest.raises(UsageError) as error:
        DecodeOptions.build(nonsense)
    assert error.value.message.startswith("--")
    assert error.value.hint


def test_a_default_filter_does_not_stand_in_the_way_of_temperature_0():
    defaults = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert DecodeOptions.build({}, defaults).top_p == 0.95
    cold = DecodeOptions.build({"temperature": 0.0}, defaults)
    assert (cold.temperature, cold.top_p, cold.top_k) == (0.0, 1.0, 0)
    with pytest.raises(UsageError, match="top-p"):
        DecodeOptions.build({"temperature": 0.0, "top_p": 0.9}, defaults)
