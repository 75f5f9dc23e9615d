"""Proposals for masked positions, and how sure the model is of them. Rows are masked positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..backend import F32, F64, I64, Backend, Handle, Scores


@dataclass(frozen=True)
class Edits:
    """Changes to the vocabulary before a choice is made."""

    banned: tuple[int, ...] = ()  # logits set to -inf: never chosen, no probability
    unsure: tuple[int, ...] = ()  # may be chosen, but count as probability zero
    penalised: tuple[int, ...] = ()  # logits lowered by `penalty`
    penalty: float = 0.0


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `dream` ranks by the distribution that is sampled from, LLaDA by the clean one."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    dream: bool = False


@dataclass(frozen=True)
class Proposals:
    """One proposed token a row, with the statistics that the measures of confidence need."""

    token: I64  # [R]
    probability: F32  # [R] of the token
    margin: F32  # [R] largest probability minus the second
    entropy: F32  # [R] nats

    def take(self, index: I64) -> Proposals:
        return Proposals(self.token[index], self.probability[index], self.margin[index], self.entropy[index])

    @classmethod
    def join(cls, parts: list[Proposals]) -> Proposals:
        columns = zip(*((p.token, p.probability, p.margin, p.entropy) for p in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def confidence_of(proposals: Proposals, remasking: str) -> F32:
    """The measure that candidates are ranked by; higher is surer."""
    if remasking in ("margin", "topk_margin"):
        return proposals.margin
    if remasking == "entropy":
        return -proposals.entropy
    return proposals.probability


def guide(conditional: F32, unconditional: F32, scale: float) -> F32:
    """Classifier-free guidance as LLaDA has it: u + (scale + 1) (c - u)."""
    return unconditional + np.float32(scale + 1) * (conditional - unconditional)


def propose(backend: Backend, h: F32, head: Handle) -> Proposals:
    """Greedy proposals for rows h [R, d] without edits: logits never exist whole."""
    scores = backend.score(h, head)
    return _with(scores, scores.ids, scores.probability)


def propose_from_logits(
    backend: Backend, logits: F32, edits: Edits, sampling: Sampling, noise: F64 | None
) -> Proposals:
    """Proposals for every row of logits [R, V], which is overwritten. `noise` is needed above temperature 0.

    In the authors' code `confidence_eos_eot_inf` removes EOS from the softmax at temperature 0 only, through an
    alias; here it means the same at every temperature.
    """
    logits[:, list(edits.banned)] = -np.inf
    if edits.penalised:
        logits[:, list(edits.penalised)] -= np.float32(edits.penalty)
    warm, drawn_from = sampling.temperature > 0, logits
    if sampling.dream or (warm and (sampling.top_p < 1 or sampling.top_k)):
        drawn_from = filtered(logits, sampling)
    if warm and noise is not None:
        # the filtered logits are divided by the temperature already
        tokens = backend.choose(drawn_from, noise, sampling.temperature if drawn_from is logits else 1.0)
    else:
        tokens = backend.statistics(drawn_from).ids
    judged = drawn_from if sampling.dream else logits
    judged[:, list(edits.unsure)] = -np.inf
    scores = backend.statistics(judged)
    return _with(scores, tokens, np.exp(judged[np.arange(len(tokens)), tokens] - scores.logsumexp))


def _with(scores: Scores, tokens: I64, probability: F32) -> Proposals:
    first = np.exp(scores.top - scores.logsumexp)
    return Proposals(tokens, probability, first - np.exp(scores.second - scores.logsumexp), scores.entropy)


def filtered(logits: F32, sampling: Sampling) -> F32:
    """logits / T, then nucleus, then top-k, as Dream's sample_tokens; what falls out is -inf. A copy."""
    out = logits / np.float32(sampling.temperature) if sampling.temperature > 0 else logits.copy()
    if sampling.top_p < 1:
        _nucleus(out, sampling.top_p)
    if 0 < sampling.top_k < out.shape[1]:
        least = np.partition(out, -sampling.top_k, axis=1)[:, -sampling.top_k]
        out[out < least[:, None]] = -np.inf
    return out


def _nucleus(logits: F32, top_p: float) -> None:
    """Drop, in place, every token whose more probable ones already sum to more than top_p."""
    order = np.argsort(-logits, axis=1, kind="stable")
    ordered = np.take_along_axis(logits, order, axis=1)
    p = np.exp(ordered - ordered[:, :1])
    before = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)
    drop = np.zeros(logits.shape, bool)
    drop[:, 1:] = before[:, :-1] > top_p
    ordered[drop] = -np.inf
    np.put_along_axis(logits, order, ordered, axis=1)


def probability_of(backend: Backend, logits: F32, tokens: I64) -> F32:
    """softmax(logits) [R, V] at `tokens`: how likely the model finds what stands there already."""
    scores = backend.statistics(logits)
    return np.exp(logits[np.arange(len(tokens)), tokens] - scores.logsumexp)
