"""Likelihood of an answer under Dream (DreamLM/Dream eval/eval.py): a Monte Carlo bound, or token by token.

The harness puts the bos token before the prompt and the eos token after the answer; here both are up to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..backend import F32
from ..errors import UsageError
from ..models.base import Model
from .likelihood import Likelihood, batch_logits, cross_entropy

ORDERS = ("ftb", "btf")  # forward and backward, as the authors call them


class Draws(Protocol):
    """The random numbers of the Monte Carlo estimate."""

    def offset(self, iteration: int) -> float:
        """U[0, 1): the time of the first row."""

    def uniforms(self, iteration: int, rows: int, length: int) -> F32:
        """U[0, 1) [rows, length]: a token is masked where it is below the row's ratio."""


class SeededDraws:
    """Draws from a seed; each depends on (seed, iteration) alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def offset(self, iteration: int) -> float:
        return float(np.random.default_rng([self.seed, 0, iteration]).random())

    def uniforms(self, iteration: int, rows: int, length: int) -> F32:
        return np.random.default_rng([self.seed, 1, iteration]).random((rows, length), np.float32)


def mask_ratios(offset: float, rows: int, eps: float) -> F32:
    """The share of tokens that each row masks: times spread evenly over [0, 1) from `offset`, kept above eps."""
    times = (np.float32(offset) + np.arange(rows, dtype=np.float32) / np.float32(rows)) % np.float32(1)
    return np.float32(1 - eps) * times + np.float32(eps)


def log_likelihood(
    model: Model,
    prompt: Sequence[int],
    target: Sequence[int],
    samples: int = 128,
    batch: int = 32,
    eps: float = 1e-3,
    cfg: float = 1.0,
    draws: Draws | None = None,
    seed: int = 0,
) -> Likelihood:
    """Monte Carlo bound on log p(target | prompt); `samples` masked copies in batches of `batch`.

    The first and the last column are never masked, the prompt neither. `cfg` is guidance as Dream counts it:
    u + cfg (c - u), off at 1.
    """
    _check(target, batch)
    if samples < batch:
        raise UsageError(f"samples={samples} with batch={batch}", "samples must be at least batch")
    draws = draws or SeededDraws(seed)
    clean = np.tile(np.array([*prompt, *target], np.int64), (batch, 1))
    losses = []
    for iteration in range(samples // batch):
        ratio = mask_ratios(draws.offset(iteration), batch, eps)
        masked = draws.uniforms(iteration, batch, clean.shape[1]) < ratio[:, None]
        masked[:, [0, -1]] = False
        masked[:, : len(prompt)] = False
        nll = _nll(model, clean, masked, masked, len(prompt), cfg)
        losses.append(float(np.sum(nll / ratio[np.nonzero(masked)[0]], dtype=np.float64) / batch))
    return Likelihood(-float(np.mean(losses)), losses)


def autoregressive(
    model: Model, prompt: Sequence[int], target: Sequence[int], order: str = "ftb", batch: int = 32, cfg: float = 1.0
) -> float:
    """log p(target | prompt), one token after the other with all later ones masked.

    order: "ftb" from the first token on, "btf" from the last one back.
    """
    _check(target, batch)
    if order not in ORDERS:
        raise UsageError(f"order is {order!r}", f"choose one of: {', '.join(ORDERS)}")
    n, p = len(target), len(prompt)
    clean = np.tile(np.array([*prompt, *target], np.int64), (n, 1))
    known = np.tri(n, k=-1, dtype=bool)  # row i knows the targets before i
    masked = np.concatenate([np.zeros((n, p), bool), ~known if order == "ftb" else np.tri(n, dtype=bool)], axis=1)
    wanted = np.concatenate([np.zeros((n, p), bool), np.eye(n, dtype=bool)], axis=1)
    parts = [slice(at, at + batch) for at in range(0, n, batch)]
    return -float(sum(_nll(model, clean[a], masked[a], wanted[a], p, cfg).sum(dtype=np.float64) for a in parts))


def _check(target: Sequence[int], batch: int) -> None:
    if not target:
        raise UsageError("the answer is empty", "a likelihood needs at least one token")
    if batch < 1:
        raise UsageError(f"batch={batch}", "batch must be at least 1")


def _nll(
    model: Model,
    clean: npt.NDArray[np.int64],
    masked: npt.NDArray[np.bool_],
    wanted: npt.NDArray[np.bool_],
    prompt: int,
    cfg: float,
) -> F32:
    """Cross-entropy [sum(wanted)] of the clean tokens, from the copies [B, L] with `masked` hidden."""
    noisy = np.where(masked, model.facts.mask_id, clean)
    # LLaDA's guidance of scale s is u + (s + 1) (c - u)
    return cross_entropy(batch_logits(model, noisy, wanted, prompt, max(cfg - 1, 0.0)), clean[wanted])
