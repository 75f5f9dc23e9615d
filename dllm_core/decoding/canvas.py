"""The canvas: prompt and masks of several sequences, laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..backend import I64, Rows


@dataclass
class Canvas:
    """Token ids of S sequences laid end to end; sequence s is ids[offsets[s]:offsets[s+1]]."""

    ids: I64  # [T]
    offsets: I64  # [S + 1]
    prompt_lengths: list[int]
    mask_id: int

    @classmethod
    def start(cls, prompts: Sequence[Sequence[int]], length: int, mask_id: int) -> Canvas:
        """Every prompt followed by `length` masks."""
        parts = [np.concatenate([np.asarray(p, np.int64), np.full(length, mask_id, np.int64)]) for p in prompts]
        return cls(*_end_to_end(parts), [len(p) for p in prompts], mask_id)

    @classmethod
    def template(cls, templates: Sequence[Sequence[int]], mask_id: int) -> Canvas:
        """Canvases that hold their masks already; the part before the first mask counts as the prompt."""
        parts = [np.asarray(t, np.int64) for t in templates]
        first = [int(np.argmax(p == mask_id)) if (p == mask_id).any() else len(p) for p in parts]
        return cls(*_end_to_end(parts), first, mask_id)

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def longest(self) -> int:
        """The largest number of positions after a prompt."""
        lengths = np.diff(self.offsets).tolist()
        return max((n - p for n, p in zip(lengths, self.prompt_lengths, strict=True)), default=0)

    def sequence(self, s: int) -> I64:
        """The ids of sequence s (a view)."""
        return self.ids[self.offsets[s] : self.offsets[s + 1]]

    def masked(self, s: int, stop: int) -> I64:
        """Positions below `stop` of sequence s that hold a mask, ascending."""
        return np.flatnonzero(self.sequence(s)[:stop] == self.mask_id).astype(np.int64)

    def copies(self) -> list[I64]:
        """A copy of every sequence, safe to keep."""
        return [self.sequence(s).copy() for s in range(len(self))]

    def rows(self) -> Rows:
        """The pass that runs every position."""
        return full_rows(self.offsets)


def _end_to_end(parts: list[I64]) -> tuple[I64, I64]:
    """(ids, offsets) of sequences laid end to end; there may be none."""
    offsets = np.cumsum([0, *(len(p) for p in parts)]).astype(np.int64)
    return np.concatenate([np.empty(0, np.int64), *parts]), offsets


def full_rows(offsets: I64) -> Rows:
    """The pass over all rows of the sequences bounded by `offsets`."""
    lengths = np.diff(offsets)
    positions = np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])
    return Rows(positions, np.arange(int(offsets[-1]), dtype=np.int64), offsets, offsets)


def prompt_positions(canvas: Canvas) -> npt.NDArray[np.bool_]:
    """Which canvas positions classifier-free guidance hides: all that hold no mask at the start."""
    return canvas.ids != canvas.mask_id
