"""Which rows a pass runs. A policy answers one question; everything else follows from the key/value slots.

All policies share one store with a slot for every canvas position: a pass runs some rows, overwrites their
slots and lets them attend to all slots of the sequence. Keys are stored rotated, positions are absolute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..backend import I64


@dataclass(frozen=True)
class View:
    """One sequence at the start of a pass."""

    sequence: int
    tokens: I64  # the visible canvas
    start: int  # of the block
    stop: int
    visible: int  # length of the canvas that takes part in attention
    pass_in_block: int  # 0 for the first
    mask_id: int


class CachePolicy(Protocol):
    """`rows` names the positions to run, ascending."""

    blockwise: bool  # only a block's first pass runs rows left of it; later ones see candidates inside it only
    bounded: bool  # a block takes at most its steps, filled or not

    def rows(self, view: View) -> I64: ...


class NoCache:
    """Every pass runs every row."""

    blockwise = False
    bounded = False

    def rows(self, view: View) -> I64:
        return np.arange(view.visible, dtype=np.int64)


class PrefixCache:
    """Fast-dLLM's prefix cache: the block's first pass runs all rows, later ones the block and all right of it."""

    blockwise = True
    bounded = False

    def rows(self, view: View) -> I64:
        return np.arange(view.start if view.pass_in_block else 0, view.visible, dtype=np.int64)


class DualCache:
    """Fast-dLLM's dual cache: the block's first pass runs all rows, later ones the block alone.

    The authors bound the passes of a block by its steps, also with a threshold; masks that are left then
    compete in the next block's first pass.
    """

    blockwise = True
    bounded = True

    def rows(self, view: View) -> I64:
        if view.pass_in_block == 0:
            return np.arange(view.visible, dtype=np.int64)
        return np.arange(view.start, view.stop, dtype=np.int64)


@dataclass
class InterstepCache:
    """Approximate: between full passes, only the block's masks and the positions that just changed run again.

    Every `refresh`-th pass of a block, and its first, runs all rows. Neighbours keep keys and values that are a
    few steps old, as in dLLM-Cache (Liu et al. 2025).
    """

    refresh: int
    blockwise: bool = False
    bounded: bool = False
    seen: dict[int, I64] = field(default_factory=dict)  # tokens when each position last ran

    def rows(self, view: View) -> I64:
        before = self.seen.get(view.sequence)
        self.seen[view.sequence] = view.tokens[: view.visible].copy()
        if view.pass_in_block % self.refresh == 0 or before is None or len(before) != view.visible:
            return np.arange(view.visible, dtype=np.int64)
        run = before != view.tokens[: view.visible]
        run[view.start : view.stop] |= view.tokens[view.start : view.stop] == view.mask_id
        return np.flatnonzero(run).astype(np.int64)


def make_policy(name: str, refresh: int) -> CachePolicy:
    """The policy called `name` (`DecodeOptions.cache`)."""
    policies: dict[str, Callable[[], CachePolicy]] = {
        "none": NoCache,
        "prefix": PrefixCache,
        "dual": DualCache,
        "interstep": lambda: InterstepCache(refresh),
    }
    return policies[name]()
