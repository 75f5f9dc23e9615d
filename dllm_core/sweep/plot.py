"""Accuracy against forward passes and against time, drawn with matplotlib (extra `plot`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import NotFoundError, UsageError, quote
from . import analysis
from .grid import STRATEGIES_GROUP
from .result import Point, Sweep

FORMATS = (".svg", ".png")
PANELS: tuple[tuple[str, analysis.Cost], ...] = (
    ("forward passes per prompt (NFE)", analysis.passes),
    ("milliseconds per prompt", analysis.milliseconds),
)
SIZE = (12.0, 7.0)  # inches of one panel
# text stays text in SVG files, and the same sweep gives the same file
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dllm",
    "font.size": 9.0,
    "font.family": ["DejaVu Sans"],
}
MARKERS = "osD^vPX<>hp"
# Around a point, near before far: where its label may stand, in points (1/72 inch).
PLACES = [
    (r * math.cos(a), r * math.sin(a))
    for r in (9, 16, 26, 38, 52)
    for a in (k * math.pi / 8 for k in (0, 8, 2, 14, 4, 12, 6, 10, 1, 15, 7, 9))
]


def check(path: Path) -> None:
    """UsageError unless `path` can be drawn to: a known ending, and matplotlib installed."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot is {quote(str(path))}", f"its name must end in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib", 'pip install "dllm[plot]"') from error


def draw(sweep: Sweep, path: Path) -> None:
    """Two panels, one above the other, logarithmic in cost; every point labelled, the best ones joined."""
    check(path)
    if not sweep.points:
        raise UsageError("there is no point to draw", "run the sweep first")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0], SIZE[1] * len(PANELS)), layout="constrained")
        FigureCanvasAgg(figure)  # measures texts without a display
        panels = figure.subplots(len(PANELS), 1)
        for axes, (title, cost) in zip(panels, PANELS, strict=True):
            _panel(axes, sweep, title, cost)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
        figure.suptitle(_title(sweep))
        figure.draw_without_rendering()
        for axes, (_, cost) in zip(panels, PANELS, strict=True):
            _label(axes, sweep.points, cost)
        try:
            metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
            figure.savefig(path, metadata=metadata, facecolor="white", dpi=110)
        except OSError as error:
            raise NotFoundError(f"cannot write {quote(str(path))}: {error.strerror}") from error


def _title(sweep: Sweep) -> str:
    e = sweep.environment
    model = Path(e["model"]).name
    return (
        f"{model}, {sweep.tasks['prompts']} prompts, {e['backend']} ({e['isa']}), {e['scheme']}, {e['threads']} threads"
    )


def _panel(axes: Any, sweep: Sweep, title: str, cost: analysis.Cost) -> None:
    groups: dict[str, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(point.group, []).append(point)
    front = analysis.pareto(sweep.points, cost)
    axes.step(
        [cost(p) for p in front],
        [100 * p.accuracy for p in front],
        where="post",
        color="0.8",
        lw=5,
        label="Pareto front",
    )
    for (group, points), marker in zip(groups.items(), itertools.cycle(MARKERS)):
        points = sorted(points, key=cost)
        star = group == STRATEGIES_GROUP
        axes.plot(
            [cost(p) for p in points],
            [100 * p.accuracy for p in points],
            marker="*" if star else marker,
            markersize=13 if star else 5,
            linestyle="",
            color="black" if star else None,
            label=group,
            zorder=3 if star else 2,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", labelsize=8)
    axes.margins(x=0.08, y=0.08)
    axes.set_xlabel(title)
    axes.set_ylabel("right answers, %")
    axes.grid(True, which="both", color="0.93")


def _label(axes: Any, points: Sequence[Point], cost: analysis.Cost) -> None:
    """Put the name of every point beside it, where it covers neither a point nor another name."""
    renderer = axes.figure.canvas.get_renderer()
    scale = axes.figure.dpi / 72
    spots = axes.transData.transform([(cost(p), 100 * p.accuracy) for p in points])
    radii = [scale * (7 if p.group == STRATEGIES_GROUP else 4) for p in points]
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(spots, radii, strict=True)]
    frame = axes.get_window_extent(renderer)
    colors = {line.get_label(): line.get_color() for line in axes.lines}
    for point, (x, y) in zip(points, spots, strict=True):
        star = point.group == STRATEGIES_GROUP
        text = axes.annotate(
            point.name, (cost(point), 100 * point.accuracy), (0, 0), textcoords="offset points",
            fontsize=8 if star else 6.5, fontweight="bold" if star else "normal", va="center",
            color=colors[point.group],
            arrowprops={"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip
        size = text.get_window_extent(renderer)
        boxes = []
        for dx, dy in PLACES:
            left = x + dx * scale - (size.width if dx < -1 else size.width / 2 if abs(dx) <= 1 else 0)
            bottom = y + dy * scale - size.height / 2
            boxes.append((left, bottom, left + size.width, bottom + size.height))
        inside = [b for b in boxes if frame.x0 < b[0] and b[2] < frame.x1 and frame.y0 < b[1] and b[3] < frame.y1]
        best = min(inside or boxes, key=lambda box: sum(_overlap(box, other) for other in taken))
        taken.append(best)
        text.set_position(((best[0] - x) / scale, ((best[1] + best[3]) / 2 - y) / scale))


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The area that two boxes (left, bottom, right, top) share."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)
