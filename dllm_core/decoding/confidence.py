"""Candidates and how sure the model is of them. Rows are masked positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..backend import F32, F64, I64, Backend, Handle


@dataclass(frozen=True)
class Edits:
    """Changes to the vocabulary before a choice is made."""

    banned: tuple[int, ...] = ()  # logits set to -inf: never chosen, no probability
    unsure: tuple[int, ...] = ()  # may be chosen, but count as probability zero


def guide(conditional: F32, unconditional: F32, scale: float) -> F32:
    """Classifier-free guidance as LLaDA has it: u + (scale + 1) (c - u)."""
    return unconditional + np.float32(scale + 1) * (conditional - unconditional)


def propose(backend: Backend, h: F32, head: Handle) -> tuple[I64, F32]:
    """(token, softmax probability) of every row h [R, d], greedy and without edits: logits never exist whole."""
    scores = backend.score(h, head)
    return scores.ids, scores.probability


def propose_from_logits(
    backend: Backend, logits: F32, edits: Edits, temperature: float, noise: F64 | None
) -> tuple[I64, F32]:
    """(token, probability) of every row of logits [R, V], which is overwritten.

    The token is the argmax, of the Gumbel-noisy logits when temperature > 0; the probability is the clean
    softmax at the token. In the authors' code `confidence_eos_eot_inf` removes EOS from the softmax at
    temperature 0 only, through an alias; here it means the same at every temperature.
    """
    logits[:, list(edits.banned)] = -np.inf
    if temperature > 0:
        assert noise is not None
        tokens = backend.choose(logits, noise, temperature)
    else:
        tokens = backend.statistics(logits).ids
    rows = np.arange(len(tokens))
    logits[:, list(edits.unsure)] = -np.inf
    scores = backend.statistics(logits)
    return tokens, np.exp(logits[rows, tokens] - scores.logsumexp)
