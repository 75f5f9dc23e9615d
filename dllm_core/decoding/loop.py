"""Decoding as a generator of steps.

For every block, until the block is finished: ask the cache policy which rows to run, run the model, propose a
token for every candidate, commit what the commit rule chooses, take back what the revoke rule doubts, yield.
With the default options this is LLaDA's sampler (ML-GSAI/LLaDA generate.py), with `schedule="timesteps"`
Dream's (DreamLM/Dream), with a cache, threshold or factor Fast-dLLM's (NVlabs/Fast-dLLM).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..backend import F32, I64
from ..models.base import Model
from . import commit, revoke, schedule
from .cache import CachePolicy, View, make_policy
from .canvas import Canvas
from .confidence import Proposals, confidence_of
from .noise import Noise, SeededNoise
from .options import DecodeOptions
from .proposer import IDLE, NOTHING, Proposer, Request

# Called with (sequence, generated tokens that are final); True ends the sequence.
StopRule = Callable[[int, I64], bool]


@dataclass(frozen=True)
class Step:
    """What one forward pass did; C tokens were committed."""

    index: int  # from 0
    block: int  # from 0
    canvas: list[I64]  # every sequence after the step; copies
    sequence: I64  # [C] of each commit
    position: I64  # [C] from the start of the prompt
    token: I64  # [C] id
    confidence: F32  # [C] what `remasking` says it is
    revoked: list[I64]  # positions taken back, per sequence
    rows_run: int  # rows of the forward pass
    seconds: float  # of the step
    finished: list[str | None]  # per sequence: None, "eos" or "stop"


@dataclass
class Track:
    """One sequence on its way through the blocks."""

    index: int
    prompt: int  # length
    length: int  # of prompt and canvas
    end: int  # position of the first committed end token, if one stops the sequence; else the length
    times: I64  # [length] how often each position was taken back
    shares: list[int] = field(default_factory=list)  # steps of every block
    finished: str | None = None
    step: int = 0  # passes it took part in
    owed: int = 0  # tokens that come on top of the next quota
    taken: I64 = field(default_factory=lambda: NOTHING)  # positions taken back in this step
    # the present block
    start: int = 0
    stop: int = 0
    visible: int = 0  # length of the canvas that takes part in attention
    steps: int = 0
    passes: int = 0  # made so far
    idle: int = 0  # of these the last ones, which chose nothing but the mask token
    open: bool = False  # the block goes on
    quotas: list[int] = field(default_factory=list)
    carry: commit.Carry | None = None


def decode(
    model: Model,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    noise: Noise | None = None,
    stop_rule: StopRule | None = None,
) -> Iterator[Step]:
    """Fill a canvas after every prompt; one Step per forward pass. `noise` defaults to the seed's."""
    canvas = Canvas.start(prompts, options.max_tokens, model.facts.mask_id)
    return decode_canvas(model, canvas, options, noise, stop_rule)


def decode_canvas(
    model: Model,
    canvas: Canvas,
    options: DecodeOptions,
    noise: Noise | None = None,
    stop_rule: StopRule | None = None,
) -> Iterator[Step]:
    """Fill the masks of a canvas; what holds a token at the start is frozen. Writes into `canvas`."""
    return Decoder(model, canvas, options, noise or SeededNoise(options.seed), stop_rule).run()


class Decoder:
    """The state of one decode."""

    def __init__(
        self, model: Model, canvas: Canvas, options: DecodeOptions, noise: Noise, stop_rule: StopRule | None
    ) -> None:
        self.model, self.options, self.noise, self.stop_rule = model, options, noise, stop_rule
        self.canvas = canvas
        self.frozen = canvas.ids != canvas.mask_id
        self.proposer = Proposer(model, canvas, options, noise)
        self.policy: CachePolicy = make_policy(options.cache, options.refresh)
        shifted = int(model.predictor(np.array([1], np.int64))[0]) != 1
        self.first_alone = shifted and self.policy.blockwise  # see _candidates
        # whether a block takes at most its steps; what it leaves must have another chance in the next block
        by_policy = self.policy.bounded and not shifted
        self.bounded = options.carries or (options.commit == "quota" if options.dream else by_policy)
        self.ends = tuple(t for t in (model.facts.eos_id, model.facts.eot_id) if t is not None)
        longest = canvas.longest
        self.blocks = schedule.block_bounds(longest, max(longest, 1) if options.one_block else options.block_length)
        lengths = zip(canvas.prompt_lengths, np.diff(canvas.offsets).tolist(), strict=True)
        self.tracks = [Track(s, p, n, end=n, times=np.zeros(n, np.int64)) for s, (p, n) in enumerate(lengths)]
        for t in self.tracks:
            t.shares = self._shares(t)

    def run(self) -> Iterator[Step]:
        index = itertools.count()
        for block, (start, stop) in enumerate(self.blocks):
            for t in self.tracks:
                self._begin(t, start, stop, t.shares[block])
            while any(t.open for t in self.tracks):
                yield self._step(next(index), block)

    # ---- one block of one sequence ----

    def _shares(self, t: Track) -> list[int]:
        """Steps of every block, in proportion to its masks. A template takes no more steps than it has masks."""
        masked = self._tokens(t)[t.prompt :] == self.canvas.mask_id
        masks = [int(masked[start:stop].sum()) for start, stop in self.blocks]
        steps = sum(masks) if self.options.steps is None else self.options.steps
        return schedule.spread_steps(steps if masked.all() else min(steps, sum(masks)), masks)

    def _begin(self, t: Track, start: int, stop: int, steps: int) -> None:
        o = self.options
        t.start, t.stop = min(t.prompt + start, t.length), min(t.prompt + stop, t.length)
        t.visible = t.stop if o.grow else t.length
        t.steps, t.passes, t.idle, t.owed = steps, 0, 0, 0
        # the quota counts the masks inside the block at its start; later candidates may lie elsewhere
        inside = int(np.sum(self._tokens(t)[t.start : t.stop] == self.canvas.mask_id))
        t.open = t.finished is None and inside > 0
        if not t.open:
            return
        split = schedule.cosine_split if o.schedule == "cosine" else schedule.even_split
        t.quotas = split(inside, steps)
        if o.carries:
            t.carry = commit.Carry(len(self._masks(t)), steps, o.threshold)
        if self.first_alone and self._tokens(t)[t.start] != self.canvas.mask_id:
            t.steps += 1  # in a template the first pass may have nothing to decide on

    def _tokens(self, t: Track) -> I64:
        return self.canvas.sequence(t.index)

    def _masks(self, t: Track, start: int = 0) -> I64:
        """The masks from `start` to the end of the block, or to the end token that stops the sequence."""
        masked = self.canvas.masked(t.index, min(t.stop, t.end))
        return masked[masked >= start]

    def _candidates(self, t: Track) -> I64:
        """The masks that compete in this pass: all left of the block's end, with a block cache those inside it.

        Where logits are shifted, the block's first token is predicted by a row outside the block. So a block
        cache's full pass decides on that one alone, and later passes have all the rows they need.
        """
        if t.passes and self.policy.blockwise:
            return self._masks(t, t.start)
        masked = self._masks(t)
        return masked[masked == t.start] if self.first_alone else masked

    def _committed(self, t: Track) -> I64:
        """Positions of the block that hold a committed token; frozen ones are not."""
        inside = np.arange(t.start, t.stop, dtype=np.int64)
        frozen = self.frozen[self.canvas.offsets[t.index] + inside]
        return inside[(self._tokens(t)[inside] != self.canvas.mask_id) & ~frozen]

    # ---- one pass ----

    def _step(self, index: int, block: int) -> Step:
        began = time.perf_counter()
        requests = [self._request(t) for t in self.tracks]
        proposals, checked, rows_run = self.proposer.run(requests, [t.visible for t in self.tracks])
        commits = []
        for t, r, p, sure in zip(self.tracks, requests, proposals, checked, strict=True):
            if t.open:
                commits.append(self._commit(t, r.candidates, p))
                self._revoke(t, r.verify, sure)
                self._close(t)
        sequence, position, token, confidence = (np.concatenate(column) for column in zip(*commits, strict=True))
        return Step(
            index,
            block,
            self.canvas.copies(),
            sequence,
            position,
            token,
            confidence,
            [t.taken for t in self.tracks],
            rows_run,
            time.perf_counter() - began,
            [t.finished for t in self.tracks],
        )

    def _request(self, t: Track) -> Request:
        t.taken = NOTHING
        if not t.open:
            return IDLE
        if self.options.revoke == "remdm":
            self._remask(t)
        view = View(t.index, self._tokens(t), t.start, t.stop, t.visible, t.passes, self.canvas.mask_id)
        verify = self._committed(t) if self.options.revoke == "confidence" else NOTHING
        first = t.start if t.passes and self.policy.blockwise else 0
        return Request(self.policy.rows(view), self._candidates(t), verify, first, t.step)

    def _commit(self, t: Track, candidates: I64, p: Proposals) -> tuple[I64, I64, I64, F32]:
        """Write the chosen tokens; (sequence, position, token, confidence) of each."""
        sure = confidence_of(p, self.options.remasking)
        if self.options.remasking == "random":
            sure = self.noise.confidences(t.index, t.step, candidates)
        chosen = self._choose(t, candidates, p, sure)
        position, token = candidates[chosen], p.token[chosen]
        # nothing forbids token == mask id: such a position was counted and stays masked, as in the authors' code
        self._tokens(t)[position] = token
        if len(chosen):
            t.idle = t.idle + 1 if (token == self.canvas.mask_id).all() else 0
        return np.full(len(chosen), t.index, np.int64), position, token, sure[chosen]

    def _choose(self, t: Track, candidates: I64, p: Proposals, sure: F32) -> I64:
        """Indices of the candidates to commit."""
        o, i = self.options, t.passes
        if self.first_alone and i == 0:
            t.owed = max(t.quotas[0] - len(sure), 0)
            return np.arange(len(sure), dtype=np.int64)
        if not len(sure):
            return NOTHING
        if t.carry is not None:
            return t.carry.choose(sure, i)
        if o.commit == "threshold":
            return commit.threshold(sure, o.threshold)
        if o.commit == "factor":
            return commit.factor(sure, o.factor)
        if o.commit == "entropy-bound":
            return commit.entropy_bound(p.entropy, o.gamma)
        if o.commit == "entropy-exit":
            return commit.entropy_exit(p.entropy, o.gamma)
        if o.remasking == "origin":
            share = schedule.timestep_share(i, t.steps, o.eps) if i < t.steps - 1 else np.float32(1)
            return np.flatnonzero(self.noise.confidences(t.index, t.step, candidates) < share).astype(np.int64)
        if o.dream:
            k = schedule.timestep_count(len(sure), i, t.steps, o.eps)
        else:
            k = (t.quotas[i] if i < len(t.quotas) else 1) + t.owed
            t.owed = 0
        if o.alg_temp > 0:
            return commit.drawn(sure, k, o.alg_temp, self.noise.confidences(t.index, t.step, candidates))
        return commit.quota(sure, k)

    # ---- taking back ----

    def _remask(self, t: Track) -> None:
        """ReMDM: before the pass, committed tokens of the block become masks again by chance."""
        if 0 < t.passes < t.steps - 1:
            o, held = self.options, self._committed(t)
            chance = self.noise.revokes(t.index, t.step, held)
            self._take(t, held[revoke.remdm(chance, t.times[held], o.revoke_rate, o.revoke_limit)])

    def _revoke(self, t: Track, verify: I64, sure: F32) -> None:
        """After the pass: tokens committed before it that the model now doubts become masks again."""
        if self.options.revoke == "confidence":
            o = self.options
            self._take(t, verify[revoke.below(sure, t.times[verify], o.revoke_below, o.revoke_limit)])

    def _take(self, t: Track, positions: I64) -> None:
        self._tokens(t)[positions] = self.canvas.mask_id
        t.times[positions] += 1
        t.taken, t.owed = positions, len(positions)
        t.idle = 0 if len(positions) else t.idle

    # ---- endings ----

    def _close(self, t: Track) -> None:
        """Decide whether the sequence is finished, and whether its block goes on."""
        t.passes, t.step = t.passes + 1, t.step + 1
        self._finish(t)
        left = t.passes < (t.carry.steps if t.carry is not None else t.steps)
        if t.finished is not None:
            t.open = False
        elif self.options.fixed_passes:
            t.open = left
        else:
            # a block that keeps choosing the mask token would go on for ever
            masks = self._masks(t, 0 if self.options.one_block else t.start)
            t.open = len(masks) > 0 and (left or not self.bounded) and t.idle < 2

    def _finish(self, t: Track) -> None:
        """Early stop: everything left of an end token, or of a stop string, is final."""
        stops = self.options.eos == "stop"
        if not stops and self.stop_rule is None:
            return
        generated = self._tokens(t)[t.prompt :]
        final, end = _first(generated == self.canvas.mask_id), _first(np.isin(generated, self.ends))
        if self.stop_rule is not None and self.stop_rule(t.index, generated[: min(final, end)]):
            t.finished = "stop"
        elif stops and end < final:
            t.finished = "eos"
        if stops:
            t.end = t.prompt + end
        if t.finished is not None:  # nothing right of the end will be read
            generated[generated == self.canvas.mask_id] = self.model.facts.eos_id


def _first(where: np.ndarray) -> int:
    """Index of the first true element, the length if there is none."""
    return int(np.argmax(where)) if where.any() else len(where)
