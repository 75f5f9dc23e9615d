"""Likelihoods and greedy completion against the authors' code, fed with the random numbers it drew."""

from __future__ import annotations

import numpy as np
import pytest

from dllm_core.decoding import likelihood

RELATIVE = 1e-4


class RecordedDraws:
    """The authors' draws, in order: one count per iteration, one permutation per row of its batch."""

    def __init__(self, case):
        self.counts, self.batch = case["k_draws"], case["args"]["batch_size"]
        self.permutations = case["randperms"]

    def first_count(self, iteration, length):
        return self.counts[iteration]

    def permutation(self, iteration, row, length):
        return np.array(self.permutations[iteration * self.batch + row])


@pytest.mark.golden("llada_loglikelihood")
def test_log_likelihood(golden_model, case, backend_name):
    args = case["args"]
    found = likelihood.log_likelihood(
        golden_model(case, backend_name),
        case["prompt"],
        case["answer"],
        samples=args["mc_num"],
        batch=args["batch_size"],
        cfg_scale=args.get("cfg_scale", 0.0),
        draws=RecordedDraws(case),
    )
    np.testing.assert_allclose(found.losses, case["batch_losses"], rtol=RELATIVE)
    np.testing.assert_allclose(found.log_likelihood, case["log_likelihood"], rtol=RELATIVE)


@pytest.mark.golden("llada_loglikelihood")
def test_masked_copies(golden_model, case, backend_name, monkeypatch):
    """What the model is shown is what the authors showed it, mask for mask, and so are the ratios."""
    model = golden_model(case, backend_name)
    batch, n = case["args"]["batch_size"], len(case["answer"])
    shown = []
    whole = likelihood.batch_logits

    def recording(model, noisy, *rest):
        shown.append(noisy.tolist())
        return whole(model, noisy, *rest)

    monkeypatch.setattr(likelihood, "batch_logits", recording)
    likelihood.log_likelihood(
        model, case["prompt"], case["answer"], case["args"]["mc_num"], batch, draws=RecordedDraws(case)
    )
    assert shown == case["perturbed"]
    for first, ratios in zip(case["k_draws"], case["p_mask"], strict=True):
        counts = likelihood.masked_counts(first, n, batch)
        np.testing.assert_array_equal((counts / n).astype(np.float32), np.array(ratios, np.float32))


@pytest.mark.golden("llada_suffix_greedy")
def test_greedy_suffix(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    tokens, trace = likelihood.greedy_suffix(model, case["prompt"], len(case["target"]), case["cfg_scale"])
    recorded = [canvases[0] for canvases in case["trace"]]
    assert [canvas.tolist() for canvas in trace[: len(recorded)]] == recorded
    assert tokens == case["greedy_completion"]
    assert (tokens == case["target"]) == case["is_greedy"]
