"""What can be read from the points of a sweep. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .result import Point, Sweep

BASELINE = "reference"  # the strategy that decodes one token a pass, as the model's authors do
POINT = 0.01  # one point of accuracy
Cost = Callable[[Point], float]


def passes(point: Point) -> float:
    return point.forward_passes


def milliseconds(point: Point) -> float:
    return point.ms_per_prompt


def baseline(sweep: Sweep) -> Point:
    """The point that others are compared with: strategy `reference`, else the one with the most forward passes."""
    return sweep.point(BASELINE) or max(sweep.points, key=passes)


def pareto(points: Sequence[Point], cost: Cost) -> list[Point]:
    """The points that no other one beats: none is at least as accurate for less, or more accurate for as little.

    Ascending in cost and accuracy.
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (cost(p), -p.correct)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


@dataclass(frozen=True)
class Change:
    """A point beside the baseline: `accuracy` is a difference, `passes` and `time` say how many times less."""

    accuracy: float
    gained: int  # prompts that only the point answers rightly
    lost: int
    passes: float
    time: float

    @property
    def kept(self) -> bool:
        """Whether at most one point of accuracy is lost."""
        return self.accuracy >= -POINT - 1e-12


def change(point: Point, base: Point) -> Change:
    pairs = list(zip(point.marks, base.marks, strict=True))
    return Change(
        point.accuracy - base.accuracy,
        sum(a > b for a, b in pairs),
        sum(a < b for a, b in pairs),
        base.forward_passes / point.forward_passes,
        base.ms_per_prompt / point.ms_per_prompt,
    )


@dataclass(frozen=True)
class Knee:
    """Where a curve bends: the point with the fewest passes before the first that loses more than one point."""

    first: Point  # of the curve: the most passes
    last_kept: Point | None  # None if already the first one loses
    first_lost: Point | None  # None if none loses


def knee(curve: Sequence[Point]) -> Knee:
    """Follow a curve from many passes to few, comparing each point with the first."""
    ordered = sorted(curve, key=passes, reverse=True)
    kept: Point | None = None
    for point in ordered:
        if not change(point, ordered[0]).kept:
            return Knee(ordered[0], kept, point)
        kept = point
    return Knee(ordered[0], kept, None)


def hurt(point: Point, base: Point) -> list[tuple[str, float]]:
    """(kind of task, change of its accuracy), the greatest loss first; ties in the order of the file."""
    changes = [(kind, _accuracy(point, kind) - _accuracy(base, kind)) for kind in base.tasks]
    return sorted(changes, key=lambda item: item[1])


def _accuracy(point: Point, kind: str) -> float:
    return point.tasks[kind]["correct"] / point.tasks[kind]["prompts"]
