"""Runs the model over the rows of a pass and proposes a token for every candidate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backend import F32, F64, I64, Rows
from ..errors import CheckpointError
from ..models.base import Model
from . import confidence
from .canvas import Canvas, prompt_positions
from .confidence import Edits, Proposals, Sampling
from .noise import Noise
from .options import DecodeOptions


@dataclass(frozen=True)
class Request:
    """What one sequence wants of a pass. All positions ascending; an idle sequence asks for nothing."""

    rows: I64  # to run
    candidates: I64  # to get proposals for
    verify: I64  # whose present token's probability is wanted
    first: int = 0  # no row left of it runs: what a shifted model would read there is read from row `first`
    step: int = 0  # passes that the sequence took part in before, for the noise


NOTHING = np.empty(0, np.int64)
IDLE = Request(NOTHING, NOTHING, NOTHING)


def edits_of(options: DecodeOptions, model: Model) -> Edits:
    """The changes to the vocabulary that the options ask for."""
    facts = model.facts
    ends = tuple(t for t in (facts.eos_id, facts.eot_id) if t is not None)
    banned = {*options.suppress_ids, *([facts.eos_id] if options.logits_eos_inf else [])}
    if options.eos == "forbid":
        banned |= set(ends)
    return Edits(
        banned=tuple(sorted(banned)),
        unsure=ends if options.confidence_eos_eot_inf else (),
        penalised=ends if options.eos_penalty else (),
        penalty=options.eos_penalty,
    )


class Proposer:
    """The model, the key/value store of a decode and the canvas, joined. One store serves all passes."""

    def __init__(self, model: Model, canvas: Canvas, options: DecodeOptions, noise: Noise) -> None:
        self.model, self.canvas, self.options, self.noise = model, canvas, options, noise
        facts = model.facts
        self.guided = options.cfg_scale > 0  # a second copy of every sequence sees masks for the prompt
        self.hidden_prompt = prompt_positions(canvas)
        slots = len(canvas.ids) * (2 if self.guided else 1)
        self.kv = model.backend.allocate_kv(facts.layers, slots, facts.kv_heads, facts.head_dim)
        self.edits = edits_of(options, model)
        self.sampling = Sampling(options.temperature, options.top_p, options.top_k, options.dream)
        greedy = self.sampling == Sampling(dream=options.dream)
        self.plain = greedy and self.edits == Edits() and not self.guided

    def run(self, requests: Sequence[Request], visible: Sequence[int]) -> tuple[list[Proposals], list[F32], int]:
        """(proposals per sequence, probability of the verified tokens per sequence, rows run).

        `visible` is the length of every sequence's canvas that takes part in attention.
        """
        predictors = [self._predictors(r, r.candidates) for r in requests]
        verifiers = [self._predictors(r, r.verify) for r in requests]
        needed = [
            np.unique(np.concatenate([r.rows, p, v])) for r, p, v in zip(requests, predictors, verifiers, strict=True)
        ]
        rows, ids = self._rows(needed, visible)
        index = [rows.q_offsets[s] + np.searchsorted(needed[s], p) for s, p in enumerate(predictors)]
        check = [rows.q_offsets[s] + np.searchsorted(needed[s], v) for s, v in enumerate(verifiers)]
        h, at = self._hidden(ids, rows, np.concatenate([*index, *check]), sum(map(len, needed)))
        sizes = [len(p) for p in predictors]
        total = sum(sizes)
        with self.model.backend.clock.time("sampling"):
            found = self._propose(h, at, total, requests)
            checked = self._verify(h, at, total, requests)
        if np.isnan(found.probability).any():
            raise CheckpointError(
                f"the logits of this model are no numbers: its weights are damaged, or too large for scheme "
                f"{self.model.scheme}",
                "compare the files with their source, or try --scheme f32",
            )
        bounds = np.cumsum([0, *sizes])
        split = [found.take(np.arange(a, b)) for a, b in itertools.pairwise(bounds)]
        return split, np.split(checked, np.cumsum([len(v) for v in verifiers])[:-1]), len(rows)

    def _predictors(self, request: Request, positions: I64) -> I64:
        """The rows whose hidden states predict `positions`."""
        return np.maximum(self.model.predictor(positions), request.first)

    def _rows(self, needed: list[I64], visible: Sequence[int]) -> tuple[Rows, I64]:
        """The pass over the positions `needed` of every sequence, twice with guidance, and its token ids."""
        canvas = self.canvas
        q_offsets = np.cumsum([0, *(len(n) for n in needed)]).astype(np.int64)
        kv_offsets = np.cumsum([0, *visible]).astype(np.int64)
        positions = np.concatenate(needed)
        slots = np.concatenate([kv_offsets[s] + n for s, n in enumerate(needed)])
        where = np.concatenate([canvas.offsets[s] + n for s, n in enumerate(needed)])
        ids = canvas.ids[where]
        if self.guided:
            ids = np.concatenate([ids, np.where(self.hidden_prompt[where], canvas.mask_id, ids)])
            positions = np.concatenate([positions, positions])
            slots = np.concatenate([slots, slots + kv_offsets[-1]])
            q_offsets = np.concatenate([q_offsets, q_offsets[1:] + q_offsets[-1]])
            kv_offsets = np.concatenate([kv_offsets, kv_offsets[1:] + kv_offsets[-1]])
        return Rows(positions, slots, q_offsets, kv_offsets), ids

    def _hidden(self, ids: I64, rows: Rows, keep: I64, half: int) -> tuple[F32, I64]:
        """(hidden states, index into them) for the rows `keep`; with guidance the index is twice as long,
        the unconditional half last."""
        if self.guided:
            keep = np.concatenate([keep, keep + half])
        if self.options.all_rows:
            return self.model.hidden(ids, self.kv, rows), keep
        wanted, back = np.unique(keep, return_inverse=True)
        return self.model.hidden(ids, self.kv, rows, wanted), back.astype(np.int64)

    def _logits(self, h: F32, at: I64, half: int, part: slice) -> F32:
        """Logits of the rows at[part], guided if so asked; `half` is where the unconditional rows begin."""
        backend, head = self.model.backend, self.model.head
        logits = backend.linear(h[at[part]], head)
        if self.guided:
            blind = backend.linear(h[at[half + part.start : half + part.stop]], head)
            logits = confidence.guide(logits, blind, self.options.cfg_scale)
        return logits

    def _propose(self, h: F32, at: I64, total: int, requests: Sequence[Request]) -> Proposals:
        backend = self.model.backend
        if self.plain:  # score every hidden state once: rows may share one
            return confidence.propose(backend, h, self.model.head).take(at[:total])
        half = len(at) // 2
        sequence = np.repeat(np.arange(len(requests)), [len(r.candidates) for r in requests])
        position = np.concatenate([r.candidates for r in requests])
        parts = []
        for a in range(0, max(total, 1), 32):  # logits exist for 32 rows at a time
            part = slice(a, min(a + 32, total))
            logits = self._logits(h, at, half, part)
            noise = None
            if self.options.temperature > 0:
                noise = self._noise(sequence[part], position[part], [r.step for r in requests])
            parts.append(confidence.propose_from_logits(backend, logits, self.edits, self.sampling, noise))
        return Proposals.join(parts)

    def _noise(self, sequence: I64, position: I64, steps: Sequence[int]) -> F64:
        vocab = self.model.facts.vocab_size
        parts = [np.empty((0, vocab))]
        for s in np.unique(sequence).tolist():
            parts.append(self.noise.uniforms(s, steps[s], position[sequence == s], vocab))
        return np.concatenate(parts)

    def _verify(self, h: F32, at: I64, total: int, requests: Sequence[Request]) -> F32:
        half = len(at) // 2 if self.guided else len(at)
        tokens = np.concatenate([self.canvas.sequence(s)[r.verify] for s, r in enumerate(requests)])
        parts = [np.empty(0, np.float32)]
        for a in range(total, half, 32):
            part = slice(a, min(a + 32, half))
            logits = self._logits(h, at, half, part)
            parts.append(confidence.probability_of(self.model.backend, logits, tokens[a - total : part.stop - total]))
        return np.concatenate(parts)
