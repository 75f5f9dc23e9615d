"""Dream's schedule, filters and likelihoods against the authors' code; its traces are in test_golden_generate.py."""

from __future__ import annotations

import numpy as np
import pytest

from dllm_core.decoding import commit, dream_likelihood, schedule
from dllm_core.decoding.confidence import Edits, Sampling, confidence_of, filtered, propose_from_logits
from dllm_core.errors import UsageError

RELATIVE = 1e-4
PROBABILITY = 1e-5


@pytest.mark.golden("dream_schedule")
def test_tokens_of_every_step(case, backend_name):
    assert len(case["rows"]) == 136
    for row in case["rows"]:
        left, counts = row["masks"], []
        for step in range(row["steps"]):
            counts.append(schedule.timestep_count(left, step, row["steps"], row["eps"]))
            left -= counts[-1]
        assert counts == row["transfers"], row
        assert left == 0


# ---- what a token is drawn from, and how sure the model is ----


@pytest.mark.golden("dream_sample_tokens")
def test_distribution_after_temperature_nucleus_and_top_k(case, backend_name):
    for i, setting in enumerate(case["settings"]):
        sampling = Sampling(setting["temperature"], setting["top_p"] or 1.0, setting["top_k"] or 0, dream=True)
        logits = filtered(case.arrays["logits"], sampling).astype(np.float64)
        probability = np.exp(logits - logits.max(axis=1, keepdims=True))
        probability /= probability.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            probability, case.arrays[f"probs{i}"], rtol=0, atol=PROBABILITY, err_msg=str(setting)
        )
        assert np.sum(np.isfinite(logits), axis=1).tolist() == setting["kept"], setting


@pytest.mark.golden("dream_sample_tokens")
def test_measures_of_confidence(case, backend_name, registry):
    backend = registry.backend(backend_name, 1)
    found = propose_from_logits(backend, case.arrays["logits"].copy(), Edits(), Sampling(dream=True), None)
    np.testing.assert_array_equal(found.token, case.arrays["argmax"])
    for rule, name in (("maskgit_plus", "maskgit"), ("topk_margin", "margin"), ("entropy", "entropy")):
        want = case.arrays[f"conf_{name}"]
        np.testing.assert_allclose(confidence_of(found, rule), want, rtol=PROBABILITY, atol=PROBABILITY, err_msg=rule)


def test_positions_are_drawn_in_proportion_to_their_confidence():
    """`alg_temp`: the shares of first draws are softmax(confidence / temperature)."""
    confidence, temperature = np.array([0.1, 0.9, 0.5], np.float32), 0.4
    uniforms = np.random.default_rng(0).random((20000, 3), np.float32)
    first = np.bincount([commit.drawn(confidence, 1, temperature, u)[0] for u in uniforms], minlength=3) / len(uniforms)
    want = np.exp(confidence / temperature) / np.exp(confidence / temperature).sum()
    np.testing.assert_allclose(first, want, atol=0.01)


# ---- likelihoods ----


class RecordedDraws:
    def __init__(self, case):
        self.case = case

    def offset(self, iteration):
        return self.case["u0"][iteration]

    def uniforms(self, iteration, rows, length):
        found = np.array(self.case["mask_uniforms"][iteration], np.float32)
        assert found.shape == (rows, length)
        return found


def monte_carlo(model, case):
    return dream_likelihood.log_likelihood(
        model,
        case["prompt"],
        case["target"],
        samples=case["mc_num"],
        batch=case["batch_size"],
        eps=case["sampling_eps"],
        draws=RecordedDraws(case),
    )


@pytest.mark.golden("dream_nll")
def test_monte_carlo(golden_model, case, backend_name):
    found = monte_carlo(golden_model(case, backend_name), case)
    np.testing.assert_allclose(-found.log_likelihood, case["nll_mc"], rtol=RELATIVE)
    np.testing.assert_allclose(np.mean(found.losses), case["nll_mc"], rtol=RELATIVE)


@pytest.mark.golden("dream_nll")
def test_masked_copies(golden_model, case, backend_name, monkeypatch):
    """What the model is shown is what the authors showed it, once the prompt is put back, and so are the ratios."""
    shown = []
    whole = dream_likelihood.batch_logits

    def recording(model, noisy, *rest):
        shown.append(noisy)
        return whole(model, noisy, *rest)

    monkeypatch.setattr(dream_likelihood, "batch_logits", recording)
    monte_carlo(golden_model(case, backend_name), case)
    want = np.array(case["noised_full"])
    want[..., : len(case["prompt"])] = case["prompt"]
    np.testing.assert_array_equal(np.stack(shown), want)
    for u0, ratios in zip(case["u0"], case["p_mask"], strict=True):
        found = dream_likelihood.mask_ratios(u0, case["batch_size"], case["sampling_eps"])
        np.testing.assert_allclose(found, ratios, rtol=1e-6)


@pytest.mark.golden("dream_nll")
@pytest.mark.parametrize("order", ["ftb", "btf"])
@pytest.mark.parametrize("batch", [3, 32])
def test_one_token_after_the_other(golden_model, case, backend_name, order, batch):
    model = golden_model(case, backend_name)
    found = dream_likelihood.autoregressive(model, case["prompt"], case["target"], order, batch)
    np.testing.assert_allclose(-found, case[f"nll_ar_{order}"], rtol=RELATIVE)


@pytest.mark.golden("dream_nll")
def test_guidance_is_off_at_one_and_counts_as_dream_does(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    plain = dream_likelihood.autoregressive(model, case["prompt"], case["target"])
    assert dream_likelihood.autoregressive(model, case["prompt"], case["target"], cfg=0.5) == plain
    # with one target token its two sides can be told apart: logits u + 2 (c - u)
    prompt, target = case["prompt"], case["target"][:1]
    mask = model.facts.mask_id
    ids = np.array([[*prompt, mask], [*[mask] * len(prompt), mask]])
    wanted = np.zeros(ids.shape, bool)
    wanted[:, -1] = True
    c, u = dream_likelihood.batch_logits(model, ids, wanted, 0, 0.0).astype(np.float64)
    logits = u + 2 * (c - u)
    want = logits[target[0]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    found = dream_likelihood.autoregressive(model, prompt, target, cfg=2.0)
    np.testing.assert_allclose(found, want, rtol=RELATIVE)


@pytest.mark.golden("dream_nll")
def test_copies_without_a_mask_lose_nothing(golden_model, case, backend_name):
    class Nothing:
        def offset(self, iteration):
            return 0.0

        def uniforms(self, iteration, rows, length):
            return np.full((rows, length), 0.999, np.float32)

    model = golden_model(case, backend_name)
    assert dream_likelihood.log_likelihood(model, [1], [2, 3], samples=2, batch=2, draws=Nothing()).losses == [0.0]


@pytest.mark.golden("dream_nll")
def test_bad_settings(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    for settings, named in (({"samples": 3, "batch": 4}, "samples=3"), ({"batch": 0}, "batch=0")):
        with pytest.raises(UsageError, match=named):
            dream_likelihood.log_likelihood(model, [1], [2], **settings)
    with pytest.raises(UsageError, match="empty"):
        dream_likelihood.log_likelihood(model, [1], [])
    with pytest.raises(UsageError, match="'up'"):
        dream_likelihood.autoregressive(model, [1], [2], "up")


def test_draws_come_from_the_seed():
    a, b = dream_likelihood.SeededDraws(3), dream_likelihood.SeededDraws(4)
    assert a.offset(0) == dream_likelihood.SeededDraws(3).offset(0)
    assert len({a.offset(0), a.offset(1), b.offset(0)}) == 3
    np.testing.assert_array_equal(a.uniforms(1, 2, 5), dream_likelihood.SeededDraws(3).uniforms(1, 2, 5))
    assert a.uniforms(0, 2, 5).shape == (2, 5)
    assert np.all((a.uniforms(0, 2, 5) >= 0) & (a.uniforms(0, 2, 5) < 1))


def test_times_are_spread_and_wrap():
    np.testing.assert_allclose(dream_likelihood.mask_ratios(0.75, 4, 0.0), [0.75, 0, 0.25, 0.5], atol=1e-6)
    np.testing.assert_allclose(dream_likelihood.mask_ratios(0.0, 2, 0.1), [0.1, 0.55], rtol=1e-6)
