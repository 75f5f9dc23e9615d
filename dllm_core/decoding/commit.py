"""Which candidates a step commits. Pure functions over one sequence's candidates; ties go to the lower index.

Each returns indices, ascending. At least one candidate is committed whenever there is one (except by `quota`,
whose k may be zero), so that every block ends.
"""

from __future__ import annotations

import numpy as np

from ..backend import F32, I64


def ranked(confidence: F32) -> I64:
    """All indices, the most confident first."""
    return np.argsort(-confidence.astype(np.float64), kind="stable").astype(np.int64)


def quota(confidence: F32, k: int) -> I64:
    """The k most confident candidates; all of them when there are fewer."""
    return np.sort(ranked(confidence)[:k])


def threshold(confidence: F32, least: float) -> I64:
    """All candidates at or above `least`, and always the best one (Fast-dLLM)."""
    order = ranked(confidence)
    return np.sort(order[: max(1, int(np.sum(confidence >= least)))])


def factor(confidence: F32, f: float) -> I64:
    """Fast-dLLM's factor rule: with confidences c_1 >= c_2 >= ..., stop before the first c_j < 1 - f / (j + 1).

    c_1 always passes. Kept from the authors' code: when the only one to fail is the last, all are taken.
    """
    order = ranked(confidence)
    n = len(order)
    bound = 1 - f / (np.arange(1, n + 1, dtype=np.float64) + 1)
    fails = np.flatnonzero(confidence[order][1:] < bound[1:]) + 1
    keep = n if len(fails) == 0 or fails[0] == n - 1 else int(fails[0])
    return np.sort(order[:keep])


def entropy_bound(entropy: F32, gamma: float) -> I64:
    """The largest set of lowest-entropy candidates with sum(H) - max(H) <= gamma (EB-Sampler, Ben-Hamu et al. 2025).

    The left side bounds the error that committing them together makes; one candidate alone has none.
    """
    order = np.argsort(entropy, kind="stable")
    joint = np.cumsum(entropy[order].astype(np.float64)) - entropy[order]
    return np.sort(order[: max(1, int(np.sum(joint <= gamma)))]).astype(np.int64)


def entropy_exit(entropy: F32, gamma: float) -> I64:
    """All candidates whose own entropy is at most gamma, and always the lowest one."""
    order = np.argsort(entropy, kind="stable")
    return np.sort(order[: max(1, int(np.sum(entropy <= gamma)))]).astype(np.int64)


def drawn(confidence: F32, k: int, temperature: float, uniforms: F32) -> I64:
    """k candidates drawn without replacement from softmax(confidence / temperature) (Dream's alg_temp).

    Adding Gumbel noise and taking the k largest draws the same as one by one.
    """
    with np.errstate(divide="ignore"):
        noisy = confidence.astype(np.float64) / temperature - np.log(-np.log(uniforms.astype(np.float64)))
    return np.sort(np.argsort(-noisy, kind="stable")[:k]).astype(np.int64)


class Carry:
    """Fast-dLLM's threshold for Dream without blocks: what fails the threshold is owed to later steps.

    A step ranks `share` tokens plus those owed, keeps the first and all at or above the threshold. A last
    step that owes tokens asks for one more step, and from then on only owed tokens are ranked.
    """

    def __init__(self, masks: int, steps: int, least: float) -> None:
        self.share, self.steps, self.least = masks // steps, steps, least
        self.owed = masks % steps

    def choose(self, confidence: F32, step: int) -> I64:
        order = ranked(confidence)[: self.share + self.owed]
        passed = confidence[order] >= self.least
        passed[:1] = True
        self.owed = int(np.sum(~passed))
        if step >= self.steps - 1 and self.owed:
            self.share = 0
            self.steps += 1
        return np.sort(order[passed])
