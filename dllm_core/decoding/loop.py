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
    """What one forward pass did. `sequence`, `position`, `token`, `confidence` describe the commits [C]."""

    index: int  # from 0
    block: int
    canvas: list[I64]  # every sequence after the step; copies
    sequence: I64
    position: I64  # from the start of the prompt
    token: I64
    confidence: F32
    revoked: list[I64]  # positions taken back, per sequence
    rows_run: int  # rows of the forward pass
    seconds: float
    finished: list[str | None]  # per sequence: None, "eos" or "stop"


@dataclass
class Track:
    """One sequence on its way through the blocks."""

    index: int
    prompt: int  # length
    length: int  # of prompt and canvas
    finished: str | None = None
    start: int = 0  # of the present block
    stop: int = 0
    visible: int = 0
    steps: int = 0  # of the block
    quotas: list[int] = field(default_factory=list)
    open: bool = False  # the block goes on
    idle: int = 0  # passes in a row that changed nothing
    carry: commit.Carry | None = None
    end: int | None = None  # position of the first committed end token
    times: I64 = field(default_factory=lambda: NOTHING)  # how often each position was taken back
    owed: int = 0  # tokens taken back before this pass, committed on top of the quota


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
        self.shifted = int(model.predictor(np.array([1], np.int64))[0]) != 1
        self.ends = tuple(t for t in (model.facts.eos_id, model.facts.eot_id) if t is not None)
        lengths = np.diff(canvas.offsets).tolist()
        self.tracks = [
            Track(s, p, n, times=np.zeros(n, np.int64))
            for s, (p, n) in enumerate(zip(canvas.prompt_lengths, lengths, strict=True))
        ]

    def run(self) -> Iterator[Step]:
        o, longest = self.options, self.canvas.longest
        blocks = schedule.block_bounds(longest, longest if o.one_block else o.block_length)
        index = itertools.count()
        shares = schedule.spread_steps(o.total_steps, [stop - start for start, stop in blocks])
        for b, ((start, stop), steps) in enumerate(zip(blocks, shares, strict=True)):
            for t in self.tracks:
                self._begin(t, start, stop, steps)
            for i in itertools.count():
                if not any(t.open for t in self.tracks):
                    break
                yield self._step(next(index), b, i)

    # ---- one block of one sequence ----

    def _begin(self, t: Track, start: int, stop: int, steps: int) -> None:
        o = self.options
        t.start, t.stop = t.prompt + start, min(t.prompt + stop, t.length)
        # the quota counts the masks inside the block at its start; later candidates may lie elsewhere
        inside = int(np.sum(self._tokens(t)[t.start : t.stop] == self.canvas.mask_id))
        t.open = t.finished is None and inside > 0
        at = int(self.canvas.offsets[t.index])
        if self.frozen[at + t.start : at + t.stop].any():  # of a template: no more passes than it has masks
            steps = max(min(steps, inside), 1)
        t.steps, t.idle = steps, 0
        t.visible = t.stop if o.grow else t.length
        split = schedule.cosine_split if o.schedule == "cosine" else schedule.even_split
        t.quotas = split(inside, steps)
        if o.one_block and o.commit == "threshold":
            t.carry = commit.Carry(len(self.canvas.masked(t.index, t.stop)), steps, o.threshold)

    def _tokens(self, t: Track) -> I64:
        return self.canvas.sequence(t.index)

    def _candidates(self, t: Track, i: int) -> I64:
        """The masks that compete in pass i of the block."""
        masked = self.canvas.masked(t.index, t.stop)
        if self.policy.blockwise and self.options.cache != "interstep":
            if i > 0:
                masked = masked[masked >= t.start]
            elif self.shifted:  # only the block's first token is predicted by a row outside the block
                masked = masked[masked == t.start]
        if self.options.eos == "stop" and t.end is not None:
            masked = masked[masked < t.end]
        return masked

    def _request(self, t: Track, i: int, step: int) -> Request:
        if not t.open:
            return IDLE
        tokens = self._tokens(t)
        if self.options.revoke == "remdm":
            self._remask(t, i, step)
        view = View(t.index, tokens, t.start, t.stop, t.visible, i, self.canvas.mask_id)
        rows, candidates = self.policy.rows(view), self._candidates(t, i)
        verify = self._committed(t) if self.options.revoke == "confidence" else NOTHING
        return Request(rows, candidates, verify)

    def _committed(self, t: Track) -> I64:
        """Positions of the block that hold a committed token; frozen ones are not."""
        inside = np.arange(t.start, t.stop, dtype=np.int64)
        frozen = self.frozen[self.canvas.offsets[t.index] + inside]
        return inside[(self._tokens(t)[inside] != self.canvas.mask_id) & ~frozen]

    # ---- one pass ----

    def _step(self, index: int, block: int, i: int) -> Step:
        began = time.perf_counter()
        before = self.canvas.ids.copy()
        requests = [self._request(t, i, index) for t in self.tracks]
        remasked = self.canvas.ids != before
        proposals, checked, rows_run = self.proposer.run(requests, [t.visible for t in self.tracks], index)
        commits: list[tuple[I64, I64, I64, F32]] = []
        for t, r, p, sure in zip(self.tracks, requests, proposals, checked, strict=True):
            if t.open:
                commits.append(self._commit(t, r, p, i, index))
                self._revoke(t, r, sure, commits[-1][1])
        revoked = [self._taken_back(t, before, remasked) for t in self.tracks]
        for t in self.tracks:
            if t.open:
                span = slice(int(self.canvas.offsets[t.index]), int(self.canvas.offsets[t.index + 1]))
                t.idle = 0 if (self.canvas.ids[span] != before[span]).any() else t.idle + 1
                self._close(t, i)
        columns = [np.concatenate(c) for c in zip(*commits, strict=True)]
        return Step(
            index,
            block,
            self.canvas.copies(),
            columns[0],
            columns[1],
            columns[2],
            columns[3],
            revoked,
            rows_run,
            time.perf_counter() - began,
            [t.finished for t in self.tracks],
        )

    def _commit(self, t: Track, r: Request, p: Proposals, i: int, step: int) -> tuple[I64, I64, I64, F32]:
        """Write the chosen tokens; (sequence, position, token, confidence) of each."""
        sure = confidence_of(p, self.options.remasking)
        if self.options.remasking == "random":
            sure = self.noise.confidences(t.index, step, r.candidates)
        chosen = self._choose(t, r, p, sure, i, step) if len(sure) else NOTHING
        position, token = r.candidates[chosen], p.token[chosen]
        # nothing forbids token == mask id: such a position was counted and stays masked, as in the authors' code
        self._tokens(t)[position] = token
        return np.full(len(chosen), t.index, np.int64), position, token, sure[chosen]

    def _choose(self, t: Track, r: Request, p: Proposals, sure: F32, i: int, step: int) -> I64:
        o = self.options
        if self.shifted and self.policy.blockwise and o.cache != "interstep" and i == 0:
            return np.arange(len(sure), dtype=np.int64)  # the single candidate at the block's start
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
            return np.flatnonzero(self.noise.confidences(t.index, step, r.candidates) < share).astype(np.int64)
        if o.dream:
            k = schedule.timestep_count(len(sure), i, t.steps, o.eps)
        else:
            k = (t.quotas[i] if i < len(t.quotas) else 1) + t.owed
        if o.alg_temp > 0:
            return commit.drawn(sure, k, o.alg_temp, self.noise.confidences(t.index, step, r.candidates))
        return commit.quota(sure, k)

    # ---- taking back ----

    def _remask(self, t: Track, i: int, step: int) -> None:
        """ReMDM: before the pass, committed tokens of the block become masks again by chance."""
        t.owed = 0
        if not 0 < i < t.steps - 1:
            return
        o, held = self.options, self._committed(t)
        back = held[revoke.remdm(self.noise.revokes(t.index, step, held), t.times[held], o.revoke_rate, o.revoke_limit)]
        self._take(t, back)
        t.owed = len(back)

    def _revoke(self, t: Track, r: Request, sure: F32, committed: I64) -> None:
        """After the pass: doubted tokens become masks again, unless the pass committed nothing else."""
        if self.options.revoke == "confidence" and len(r.verify):
            o = self.options
            doubted = revoke.below(sure, t.times[r.verify], o.revoke_below, o.revoke_limit)
            self._take(t, r.verify[doubted])

    def _take(self, t: Track, positions: I64) -> None:
        self._tokens(t)[positions] = self.canvas.mask_id
        t.times[positions] += 1

    def _taken_back(self, t: Track, before: I64, remasked: np.ndarray) -> I64:
        """Positions that held a token before the step and were taken back in it."""
        a, b = int(self.canvas.offsets[t.index]), int(self.canvas.offsets[t.index + 1])
        gone = (before[a:b] != self.canvas.mask_id) & (remasked[a:b] | (self.canvas.ids[a:b] == self.canvas.mask_id))
        return np.flatnonzero(gone).astype(np.int64)

    # ---- endings ----

    def _close(self, t: Track, i: int) -> None:
        """Decide whether the sequence is finished, and whether its block goes on."""
        o, passes = self.options, i + 1
        self._finish(t)
        if t.finished is not None:
            t.open = False
            return
        if o.fixed_passes:
            t.open = passes < t.steps
            return
        if t.carry is not None:
            t.open = passes < t.carry.steps
            return
        masked = self.canvas.masked(t.index, t.stop)
        masked = masked[masked >= (0 if o.one_block else t.start)]
        if o.eos == "stop" and t.end is not None:
            masked = masked[masked < t.end]
        by_steps = (self.policy.bounded or o.dream) and o.commit == "quota"
        by_steps = by_steps or (self.policy.bounded and not o.dream)
        t.open = len(masked) > 0 and not (by_steps and passes >= t.steps) and t.idle < 2

    def _finish(self, t: Track) -> None:
        """Early stop: everything left of an end token, or of a stop string, is final."""
        if self.options.eos != "stop" and self.stop_rule is None:
            return
        tokens = self._tokens(t)
        generated = tokens[t.prompt :]
        masks = np.flatnonzero(generated == self.canvas.mask_id)
        final = int(masks[0]) if len(masks) else len(generated)
        if self.options.eos == "stop":
            ends = np.flatnonzero(np.isin(generated, self.ends))
            t.end = t.prompt + int(ends[0]) if len(ends) else None
            if len(ends) and ends[0] < final:
                t.finished = "eos"
        if t.finished is None and self.stop_rule is not None and self.stop_rule(t.index, generated[:final]):
            t.finished = "stop"
        if t.finished is not None:  # nothing right of the end will be read
            generated[generated == self.canvas.mask_id] = self.model.facts.eos_id
