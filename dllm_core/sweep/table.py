"""The points of a sweep as rows of text."""

from __future__ import annotations

from collections.abc import Sequence

from . import analysis
from .result import Point, Sweep

COLUMNS = (
    "setting",
    "accuracy",
    "passes",
    "rows run",
    "ms",
    "ms/pass",
    "useful tok/s",
    "canvas tok/s",
    "EOS",
    "length",
    "masks left",
)  # all but the first are numbers
LEGEND = (
    "* no other setting is as accurate with fewer passes. passes, rows run, ms: means of a prompt. "
    "EOS: share of answers with an end token; length: mean tokens before it; masks left: share of answers."
)


def rows(sweep: Sweep) -> list[list[str]]:
    """A row for every point, in the order of the grid."""
    front = {p.name for p in analysis.pareto(sweep.points, analysis.passes)}
    return [row(point, point.name in front) for point in sweep.points]


def row(p: Point, best: bool) -> list[str]:
    return [
        p.name + (" *" if best else ""),
        f"{p.accuracy:.1%}",
        f"{p.forward_passes:.1f}",
        f"{p.rows_run:.0f}",
        f"{p.ms_per_prompt:.1f}",
        f"{p.ms_per_pass:.2f}",
        f"{p.useful_tokens_per_s:.0f}",
        f"{p.canvas_tokens_per_s:.0f}",
        f"{p.ended_by_eos:.0%}",
        f"{p.useful_length:.1f}",
        f"{p.with_masks_left:.0%}",
    ]


def markdown(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    lines = [columns, rule, *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
