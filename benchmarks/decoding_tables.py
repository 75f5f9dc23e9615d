"""The tables and sentences of docs/decoding.md that depend on measured figures or on the code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dllm_core.decoding.options import DecodeOptions, flag
from dllm_core.decoding.strategies import STRATEGIES
from dllm_core.errors import UsageError
from dllm_core.sweep import analysis, table
from dllm_core.sweep.result import Point, Sweep, read

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
SWEEP, CACHES = RESULTS / "sweep.json", RESULTS / "cache-ratio.json"
COMMANDS = {SWEEP: "dllm sweep --out docs/results/sweep.json", CACHES: "python benchmarks/cache_ratio.py"}
TIMES_LESS = 3.0  # what a fast strategy is asked for: this many times fewer passes and less time
WORTH_NAMING = 0.03  # a kind of task that loses less than this is not named

# title -> (group, fixed fields): points that differ in one setting only, from careful to bold
CURVES: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens a pass, one block (pure diffusion)": ("pure diffusion", {}),
    "tokens a pass, blocks of 8, every pass run": ("blocks", {}),
    "tokens a pass, blocks of 8, early stop": ("quota", {"schedule": "linear", "remasking": "low_confidence"}),
    "threshold": ("threshold", {"block_length": 8}),
    "factor": ("factor", {}),
    "entropy bound": ("entropy", {"commit": "entropy-bound"}),
    "entropy exit": ("entropy", {"commit": "entropy-exit"}),
    "threshold with revoke": ("revoke", {"revoke": "confidence"}),
}

# combinations that DecodeOptions refuses, the shortest example of each
REFUSED: tuple[dict[str, Any], ...] = (
    {"max_tokens": 64, "block_length": 8, "steps": 4},
    {"commit": "threshold", "remasking": "entropy"},
    {"commit": "factor", "remasking": "random"},
    {"remasking": "origin"},
    {"schedule": "timesteps", "remasking": "origin", "cache": "dual"},
    {"schedule": "timesteps", "commit": "factor"},
    {"schedule": "cosine", "commit": "threshold"},
    {"commit": "entropy-bound", "remasking": "random"},
    {"alg_temp": 0.5},
    {"schedule": "timesteps", "alg_temp": 0.5, "commit": "threshold"},
    {"top_p": 0.9},
    {"revoke": "confidence", "cache": "dual"},
    {"revoke": "confidence", "schedule": "timesteps"},
    {"revoke": "remdm", "commit": "threshold"},
    {"grow": True, "schedule": "timesteps"},
    {"grow": True},
    {"eos": "forbid", "logits_eos_inf": True},
)


def needs(path: Path) -> Callable[[Callable[[Any], str]], Callable[[], str]]:
    """A table of one result file; without the file, the command that makes it."""

    def wrap(draw: Callable[[Any], str]) -> Callable[[], str]:
        def render() -> str:
            if not path.exists():
                return f"Not measured yet: `{COMMANDS[path]}`."
            return draw(read(path) if path == SWEEP else json.loads(path.read_text()))

        return render

    return wrap


# ---- words for figures ----


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """A difference of two accuracies, with its sign."""
    rounded = round(100 * difference, 1)
    return "0.0" if rounded == 0 else f"{rounded:+.1f}"


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def plain(cells: Sequence[Sequence[object]], columns: Sequence[str]) -> str:
    """A markdown table of text cells."""
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def machine(e: dict[str, Any]) -> str:
    return f"{e['backend']} ({e['isa']}), {e['scheme']}, {counted(e['threads'], 'thread')} on {e['cpu']}, {e['date']}"


def cell(point: Point) -> str:
    return f"{point.name}: {percent(point.accuracy)}, {point.forward_passes:.1f} passes"


# ---- the code itself ----


def refused() -> str:
    """Every combination with the very message that it is refused with."""
    cells = []
    for given in REFUSED:
        try:
            DecodeOptions(**given)
        except UsageError as error:
            shown = " ".join(flag(key) if value is True else f"{flag(key)} {value}" for key, value in given.items())
            cells.append((f"`{shown}`", error.message, error.hint))
        else:
            raise SystemExit(f"DecodeOptions accepts {given}: it is no longer refused")
    return plain(cells, ("given", "message", "way out"))


# ---- the sweep ----


@needs(SWEEP)
def conditions(sweep: Sweep) -> str:
    e = sweep.environment
    base = analysis.baseline(sweep)
    n = sweep.tasks["prompts"]
    error = math.sqrt(base.accuracy * (1 - base.accuracy) / n)
    kinds, model, canvas = len(sweep.tasks["kinds"]), Path(e["model"]).name, base.options["max_tokens"]
    text = [
        f"{n} held-out prompts of {kinds} kinds, model `{model}`, canvas of {canvas}; {machine(e)}.",
        f"One point of accuracy is {n / 100:.1f} prompts; the standard error of a single accuracy is about "
        f"{100 * error:.1f} points, so the answers gained and lost, prompt by prompt, say more than a difference.",
    ]
    if not sweep.finished:
        text.append(f"The sweep is not finished: {len(sweep.points)} of {len(sweep.grid['settings'])} settings.")
    return " ".join([*text, *(f"{note}." for note in sweep.notes)])


@needs(SWEEP)
def strategies(sweep: Sweep) -> str:
    """Every named strategy with its point, and which of them are fast without loss."""
    base = analysis.baseline(sweep)
    cells, fast = [], []
    for name, strategy in STRATEGIES.items():
        point = sweep.point(name)
        if point is None:
            cells.append([f"`{name}`", strategy.summary, *["not measured"] * 5])
            continue
        c = analysis.change(point, base)
        if c.kept and min(c.passes, c.time) >= TIMES_LESS:
            fast.append(f"`{name}`")
        same = point is base
        cells.append(
            [
                f"`{name}`",
                strategy.summary,
                percent(point.accuracy) if same else f"{percent(point.accuracy)} ({points(c.accuracy)})",
                "" if same else f"{c.gained} / {c.lost}",
                f"{point.forward_passes:.1f}" + ("" if same else f" ({c.passes:.1f}x fewer)"),
                f"{point.rows_run:.0f}",
                f"{point.ms_per_prompt:.1f}" + ("" if same else f" ({c.time:.1f}x less)"),
            ]
        )
    columns = ("strategy", "what it does", "right", "gained / lost", "forward passes", "rows run", "ms a prompt")
    less = f"at least {TIMES_LESS:g} times fewer forward passes and {TIMES_LESS:g} times less time"
    verdict = f"Within one point of `{base.name}` with {less}: {listed(fast) if fast else 'none of them'}."
    return f"{plain(cells, columns)}\n\n{verdict}"


@needs(SWEEP)
def front(sweep: Sweep) -> str:
    """The Pareto front, in a sentence and a table."""
    best = analysis.pareto(sweep.points, analysis.passes)
    base = analysis.baseline(sweep)
    kept = [p for p in best if analysis.change(p, base).kept]
    rows = [table.row(p, False) for p in best]
    text = table.markdown(table.COLUMNS, rows)
    if kept:
        c = analysis.change(kept[0], base)
        text += (
            f"\n\nThe fewest passes within one point of `{base.name}` on this front: {cell(kept[0])}, "
            f"{c.passes:.1f} times fewer passes and {c.time:.1f} times less time."
        )
    return text


@needs(SWEEP)
def all_points(sweep: Sweep) -> str:
    return table.markdown(table.COLUMNS, table.rows(sweep))


def curves(sweep: Sweep) -> dict[str, list[Point]]:
    """The points of every curve that the file holds, from many passes to few."""
    found = {}
    for title, (group, fixed) in CURVES.items():
        own = [p for p in sweep.points if p.group == group and all(p.options[k] == v for k, v in fixed.items())]
        if len(own) > 1:
            found[title] = sorted(own, key=analysis.passes, reverse=True)
    return found


@needs(SWEEP)
def knee(sweep: Sweep) -> str:
    """Where every curve bends, and what suffers there."""
    cells, losses, unbent = [], {}, []
    for title, curve in curves(sweep).items():
        k = analysis.knee(curve)
        if k.first_lost is None:
            unbent.append(title)
            cells.append((title, cell(k.first), cell(curve[-1]), "none", ""))
            continue
        hurt = [(kind, d) for kind, d in analysis.hurt(k.first_lost, k.first) if d <= -WORTH_NAMING]
        for kind, d in hurt:
            losses[kind] = losses.get(kind, 0.0) + d
        c = analysis.change(k.first_lost, k.first)
        last = cell(k.last_kept) if k.last_kept else "none"
        lost = f"{cell(k.first_lost)} ({points(c.accuracy)}; {c.gained} gained, {c.lost} lost)"
        named = ", ".join(f"{kind} {points(d)}" for kind, d in hurt[:4]) or "no kind by itself"
        cells.append((title, cell(k.first), last, lost, named))
    columns = (
        "curve",
        "its first point",
        "last within one point of it",
        "first that loses more",
        "what loses most there",
    )
    bent = len(cells) - len(unbent)
    worst = sorted(losses, key=lambda kind: losses[kind])[:3]
    text = f"{bent} of {len(cells)} curves lose more than one point somewhere."
    if worst:
        text += f" Over all of them, the tasks that lose most where it begins: {listed(worst)}."
    return f"{plain(cells, columns)}\n\n{text}"


@needs(SWEEP)
def by_task(sweep: Sweep) -> str:
    """Accuracy of every kind of task along the curves of early stop and threshold."""
    found = curves(sweep)
    titles = ("tokens a pass, blocks of 8, early stop", "threshold")
    shown = [analysis.baseline(sweep), *(p for t in titles for p in found.get(t, []))]
    body = []
    for kind in sweep.tasks["kinds"]:
        body.append([kind, *(f"{p.tasks[kind]['correct'] / p.tasks[kind]['prompts']:.0%}" for p in shown)])
    body.append(["**all**", *(f"**{p.accuracy:.0%}**" for p in shown)])
    body.append(["forward passes", *(f"{p.forward_passes:.1f}" for p in shown)])
    return table.markdown(["task", *(p.name for p in shown)], body)


@needs(SWEEP)
def ends(sweep: Sweep) -> str:
    """What the options of EOS do."""
    names = ["reference", "pure, 1 a pass", "pure, ends last", "blocks, 1 a pass", "quota 1"]
    names += ["threshold 0.9, eos keep", "threshold 0.9", "threshold 0.9, grow"]
    shown = [p for p in map(sweep.point, names) if p is not None]
    body = [
        [
            p.name,
            p.options["eos"],
            percent(p.accuracy),
            f"{p.forward_passes:.1f}",
            f"{p.rows_run:.0f}",
            percent(p.ended_by_eos),
            f"{p.useful_length:.1f}",
            percent(p.with_masks_left),
        ]
        for p in shown
    ]
    columns = ("setting", "eos", "right", "forward passes", "rows run", "ended by EOS", "mean length", "masks left")
    return plain(body, columns)


# ---- caches ----


@needs(CACHES)
def cache_ratio(result: dict[str, Any]) -> str:
    r = result
    stack = f"{r['layers']} of {r['full_layers']} layers of width {r['width']}, random weights"
    text = (
        f"{stack}, vocabulary of {r['vocab']} (the same share); prompt {r['prompt']}, canvas {r['canvas']}, block "
        f"{r['block']}, {r['tokens_per_pass']} tokens a pass; {machine(r)}. The three took turns, pass by pass, over "
        f"{counted(r['rounds'], 'decode')} each."
    )
    body = [
        [c["cache"], f"{c['rows']:.0f}", f"{c['ms']:.0f}", f"{c['rows_ratio']:.2f}", f"{c['ms_ratio']:.2f}"]
        for c in r["caches"]
    ]
    columns = ("cache", "rows of a pass", "ms of a pass", "times fewer rows", "times less time")
    kinds = [
        [c["cache"], str(k["rows"]), str(k["passes"]), f"{k['ms']:.0f}", f"{k['ms'] / k['rows']:.2f}"]
        for c in r["caches"]
        for k in c["kinds"]
    ]
    reached = [f"{c['cache']} {c['ms_ratio'] / c['rows_ratio']:.0%}" for c in r["caches"][1:]]
    shares = (
        f"The ratio of times is this share of the ratio of rows: {', '.join(reached)}. Every kind of pass (median):"
    )
    single = table.markdown(("cache", "rows", "passes", "ms", "ms a row"), kinds)
    return f"{table.markdown(columns, body)}\n\n{text}\n\n{shares}\n\n{single}"


TABLES = {
    "decoding_refused": refused,
    "decoding_conditions": conditions,
    "decoding_strategies": strategies,
    "decoding_front": front,
    "decoding_points": all_points,
    "decoding_knee": knee,
    "decoding_tasks": by_task,
    "decoding_ends": ends,
    "cache_ratio": cache_ratio,
}
