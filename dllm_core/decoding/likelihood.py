"""Likelihood of an answer under LLaDA (ML-GSAI/LLaDA get_log_likelihood.py and eval_llada.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..backend import F32, I64
from ..errors import UsageError
from ..models.base import Model
from . import commit
from .canvas import Canvas, full_rows, prompt_positions
from .confidence import guide


class Draws(Protocol):
    """The random choices of the Monte Carlo estimate."""

    def first_count(self, iteration: int, length: int) -> int:
        """k in [1, length]: how many tokens the first row of the batch masks."""

    def permutation(self, iteration: int, row: int, length: int) -> I64:
        """A random order of the answer's positions."""


class SeededDraws:
    """Draws from a seed; each depends on (seed, iteration, row) alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def first_count(self, iteration: int, length: int) -> int:
        return int(self._generator(0, iteration).integers(1, length + 1))

    def permutation(self, iteration: int, row: int, length: int) -> I64:
        return self._generator(1, iteration, row).permutation(length)


@dataclass(frozen=True)
class Likelihood:
    """`log_likelihood` (nats) is the mean of -`losses`, a lower bound in expectation; one loss per iteration."""

    log_likelihood: float
    losses: list[float]

    @property
    def standard_error(self) -> float:
        """Of the mean over iterations; 0 with a single one."""
        n = len(self.losses)
        return float(np.std(self.losses, ddof=1) / np.sqrt(n)) if n > 1 else 0.0


def masked_counts(first: int, length: int, rows: int) -> I64:
    """How many answer tokens each row masks: stratified over 1..length, starting at `first`.

    float32 linspace rounded half to even, then wrapped, as in the authors' forward_process.
    """
    end = first + (rows - 1) * (length / rows)
    counts = np.rint(np.linspace(np.float32(first), np.float32(end), rows, dtype=np.float32)).astype(np.int64)
    return (counts - 1) % length + 1


def log_likelihood(
    model: Model,
    prompt: Sequence[int],
    answer: Sequence[int],
    samples: int = 128,
    batch: int = 16,
    cfg_scale: float = 0.0,
    draws: Draws | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Likelihood:
    """Monte Carlo bound on log p(answer | prompt); `samples` masked copies in batches of `batch`.

    Every copy masks l answer tokens; its cross-entropies at masks count N / l. A mask token in the data counts
    as masked, as in the authors' code.
    """
    if not answer:
        raise UsageError("the answer is empty", "a likelihood needs at least one token")
    if samples < batch or batch < 1:
        raise UsageError(
            f"samples={samples} with batch={batch}", "samples must be at least batch, and batch at least 1"
        )
    draws = draws or SeededDraws(seed)
    n, p = len(answer), len(prompt)
    clean = np.array([*prompt, *answer], np.int64)
    losses = []
    for iteration in range(samples // batch):
        counts = masked_counts(draws.first_count(iteration, n), n, batch)
        noisy = np.tile(clean, (batch, 1))
        for row, count in enumerate(counts):
            hidden = (np.arange(n) < count)[draws.permutation(iteration, row, n)]
            noisy[row, p:][hidden] = model.facts.mask_id
        ratio = np.repeat((counts / n).astype(np.float32)[:, None], p + n, axis=1)
        masked = noisy == model.facts.mask_id
        logits = batch_logits(model, noisy, masked, p, cfg_scale)
        true = np.tile(clean, (batch, 1))[masked]
        nll = cross_entropy(logits, true)
        losses.append(float(np.sum(nll / ratio[masked], dtype=np.float64) / batch))
        progress(iteration + 1, samples // batch)
    return Likelihood(-float(np.mean(losses)), losses)


def batch_logits(
    model: Model, noisy: npt.NDArray[np.int64], wanted: npt.NDArray[np.bool_], prompt: int, cfg_scale: float
) -> F32:
    """Logits [sum(wanted), V] of a rectangular batch [B, L]; guidance hides the first `prompt` columns."""
    rows, length = noisy.shape
    ids = noisy
    if cfg_scale > 0:
        blind = noisy.copy()
        blind[:, :prompt] = model.facts.mask_id
        ids = np.concatenate([noisy, blind])
    offsets = np.arange(len(ids) + 1, dtype=np.int64) * length
    where = np.flatnonzero(wanted)
    keep = where if cfg_scale <= 0 else np.concatenate([where, where + rows * length])
    facts = model.facts
    kv = model.backend.allocate_kv(facts.layers, int(offsets[-1]), facts.kv_heads, facts.head_dim)
    source = keep // length * length + model.predictor(keep % length)
    needed, back = np.unique(source, return_inverse=True)
    h = model.hidden(ids.reshape(-1), kv, full_rows(offsets), needed)
    logits = model.backend.linear(h, model.head)[back]
    if cfg_scale > 0:
        return guide(logits[: len(where)], logits[len(where) :], cfg_scale)
    return logits


def cross_entropy(logits: F32, true: I64) -> F32:
    """-log softmax(logits) [R, V] at the tokens `true` [R]."""
    top = logits.max(axis=1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return lse - logits[np.arange(len(true)), true]


def greedy_suffix(
    model: Model, prompt: Sequence[int], length: int, cfg_scale: float = 0.0
) -> tuple[list[int], list[I64]]:
    """(completion, canvas after every step) of eval_llada's suffix_greedy_prediction.

    `length` steps; each commits the most confident masked position of the whole suffix.
    """
    canvas = Canvas.start([prompt], length, model.facts.mask_id)
    hidden_prompt = prompt_positions(canvas)
    trace = [canvas.ids.copy()]
    for _ in range(length):
        masked = canvas.ids == model.facts.mask_id
        blind = int(hidden_prompt.sum())
        logits = batch_logits(model, canvas.ids[None], masked[None], blind, cfg_scale)
        scores = model.backend.statistics(logits)
        best = commit.quota(scores.probability, 1)
        canvas.ids[np.flatnonzero(masked)[best]] = scores.ids[best]
        trace.append(canvas.ids.copy())
    return [int(t) for t in canvas.ids[len(prompt) :]], trace
