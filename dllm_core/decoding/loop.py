"""LLaDA's sampler (ML-GSAI/LLaDA generate.py) as a generator of steps.

For every block, for every step: run the model, propose a token for every candidate, commit the most confident
ones, yield. Candidates are all masks left of the block's end, also those inside the prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..backend import F32, I64, Rows
from ..models.base import Model
from . import commit, confidence, schedule
from .canvas import Canvas, full_rows, prompt_positions
from .noise import Noise, SeededNoise
from .options import DecodeOptions


@dataclass(frozen=True)
class Step:
    """What one forward pass did. `sequence`, `position`, `token`, `confidence` describe the commits."""

    index: int  # from 0
    block: int
    canvas: list[I64]  # every sequence after the step; copies
    sequence: I64  # [C]
    position: I64  # [C] from the start of the prompt
    token: I64  # [C]
    confidence: F32  # [C]
    rows_run: int  # rows of the forward pass
    seconds: float


@dataclass(frozen=True)
class Candidates:
    """Masked positions that compete in a step, of all sequences, with the model's proposals."""

    sequence: I64
    position: I64
    token: I64
    confidence: F32


def decode(
    model: Model, prompts: Sequence[Sequence[int]], options: DecodeOptions, noise: Noise | None = None
) -> Iterator[Step]:
    """Fill the canvas of every prompt; one Step per forward pass. `noise` defaults to the seed's."""
    canvas = Canvas.start(prompts, options.max_tokens, model.facts.mask_id)
    proposer = Proposer(model, canvas, options, noise or SeededNoise(options.seed))
    blocks = schedule.block_bounds(options.max_tokens, options.block_length)
    index = 0
    shares = schedule.spread_steps(options.total_steps, [stop - start for start, stop in blocks])
    for b, ((start, stop), steps) in enumerate(zip(blocks, shares, strict=True)):
        # the quota counts the masks inside the block at its start; later candidates may lie elsewhere
        inside = [int(np.sum(canvas.sequence(s)[p + start : p + stop] == canvas.mask_id)) for s, p in _prompts(canvas)]
        quotas = [schedule.even_split(n, steps) for n in inside]
        ends = [p + stop for _, p in _prompts(canvas)]
        for i in range(steps):
            began = time.perf_counter()
            found = proposer.propose(canvas, ends, index)
            chosen = _choose(found, [q[i] for q in quotas])
            _write(canvas, chosen)
            yield Step(
                index,
                b,
                canvas.copies(),
                chosen.sequence,
                chosen.position,
                chosen.token,
                chosen.confidence,
                len(proposer.rows),
                time.perf_counter() - began,
            )
            index += 1


def _prompts(canvas: Canvas) -> list[tuple[int, int]]:
    return list(enumerate(canvas.prompt_lengths))


def _choose(found: Candidates, quotas: list[int]) -> Candidates:
    """The part of `found` that this step commits, sequence by sequence."""
    picks = []
    for s, k in enumerate(quotas):
        mine = np.flatnonzero(found.sequence == s)
        picks.append(mine[commit.quota(found.confidence[mine], k)])
    take = np.concatenate(picks)
    return Candidates(found.sequence[take], found.position[take], found.token[take], found.confidence[take])


def _write(canvas: Canvas, chosen: Candidates) -> None:
    # nothing forbids token == mask id: such a position was counted and stays masked, as in the authors' code
    canvas.ids[canvas.offsets[chosen.sequence] + chosen.position] = chosen.token


class Proposer:
    """Runs the model on a canvas and proposes a token for every candidate."""

    def __init__(self, model: Model, canvas: Canvas, options: DecodeOptions, noise: Noise) -> None:
        self.model, self.options, self.noise = model, options, noise
        facts = model.facts
        self.guided = options.cfg_scale > 0
        self.hidden_prompt = prompt_positions(canvas)
        offsets = canvas.offsets
        if self.guided:  # the second half of the batch sees masks for the prompt
            offsets = np.concatenate([offsets, offsets[1:] + offsets[-1]])
        self.rows: Rows = full_rows(offsets)
        self.kv = model.backend.allocate_kv(facts.layers, int(offsets[-1]), facts.kv_heads, facts.head_dim)
        ends = tuple(t for t in (facts.eos_id, facts.eot_id) if t is not None)
        self.edits = confidence.Edits(
            banned=(facts.eos_id,) if options.logits_eos_inf else (),
            unsure=ends if options.confidence_eos_eot_inf else (),
        )
        self.plain = not self.guided and options.temperature == 0 and self.edits == confidence.Edits()

    def propose(self, canvas: Canvas, ends: list[int], step: int) -> Candidates:
        """Tokens and confidences for all masks left of `ends[s]` in every sequence s."""
        positions = [canvas.masked(s, stop) for s, stop in enumerate(ends)]
        sequence = np.repeat(np.arange(len(positions)), [len(p) for p in positions]).astype(np.int64)
        position = np.concatenate(positions)
        predictors = np.concatenate(
            [canvas.offsets[s] + self.model.predictor(p) for s, p in enumerate(positions)]
        ).astype(np.int64)
        h, back = self._hidden(canvas, predictors)
        with self.model.backend.clock.time("sampling"):
            if self.plain:
                token, sure = confidence.propose(self.model.backend, h, self.model.head)
                token, sure = token[back], sure[back]
            else:
                token, sure = self._propose_from_logits(h[back], sequence, position, step)
        if self.options.remasking == "random":
            sure = np.concatenate(
                [self.noise.confidences(s, step, p) for s, p in enumerate(positions)], dtype=np.float32
            )
        return Candidates(sequence, position, token, sure)

    def _hidden(self, canvas: Canvas, predictors: I64) -> tuple[F32, I64]:
        """(hidden states, index into them) for the rows `predictors`; with guidance the index is twice as long,
        the unconditional half last."""
        ids, total = canvas.ids, len(canvas.ids)
        keep = predictors
        if self.guided:
            ids = np.concatenate([ids, np.where(self.hidden_prompt, canvas.mask_id, ids)])
            keep = np.concatenate([predictors, predictors + total])
        if self.options.all_rows:
            return self.model.hidden(ids, self.kv, self.rows), keep
        wanted, back = np.unique(keep, return_inverse=True)
        return self.model.hidden(ids, self.kv, self.rows, wanted), back.astype(np.int64)

    def _propose_from_logits(self, h: F32, sequence: I64, position: I64, step: int) -> tuple[I64, F32]:
        """The path that needs logits: guidance, noise or an edited vocabulary; in blocks of rows."""
        backend, head, n = self.model.backend, self.model.head, len(position)
        vocab = self.model.facts.vocab_size
        tokens, sure = np.empty(n, np.int64), np.empty(n, np.float32)
        for at in range(0, n, 32):
            part = slice(at, min(at + 32, n))
            logits = backend.linear(h[part], head)
            if self.guided:
                logits = confidence.guide(
                    logits, backend.linear(h[n + at : n + part.stop], head), self.options.cfg_scale
                )
            noise = None
            if self.options.temperature > 0:
                noise = np.concatenate(
                    [
                        self.noise.uniforms(int(s), step, position[part][sequence[part] == s], vocab)
                        for s in np.unique(sequence[part])
                    ]
                )
            tokens[part], sure[part] = confidence.propose_from_logits(
                backend, logits, self.edits, self.options.temperature, noise
            )
        return tokens, sure


def without_prompt(step: Step, prompt_lengths: Sequence[int]) -> Step:
    """The step with canvases cut to the generated part (positions keep counting from the prompt's start)."""
    return replace(step, canvas=[c[p:] for c, p in zip(step.canvas, prompt_lengths, strict=True)])
