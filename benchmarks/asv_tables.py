"""Tables from asv's committed results: the newest commit of every machine in benchmarks/results/."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def newest() -> dict[str, Any] | None:
    """The result file of the newest commit; None where there is none."""
    files = [p for p in RESULTS.glob("*/*.json") if p.name != "machine.json"]
    found = [json.loads(path.read_text()) for path in files]
    return max(found, key=lambda r: r["date"]) if found else None


def values(results: dict[str, Any], benchmark: str) -> dict[tuple[str, ...], float | None]:
    """The results of one benchmark by its parameters, quotes taken off; None where it failed or was skipped."""
    row = results["results"].get(benchmark)
    if row is None:
        return {}
    columns = dict(zip(results["result_columns"], row, strict=False))
    keys = itertools.product(*([p.strip("'") for p in names] for names in columns["params"]))
    found = columns["result"] or []
    return {key: None if v is None or math.isnan(v) else v for key, v in zip(keys, found, strict=False)}


def table(titles: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [titles, ["---"] * len(titles), *rows])


def missed() -> str:
    """Percent of the limits that kernels and passes leave unused, on one thread and on all."""
    results = newest()
    if results is None:
        return "Not measured yet: `benchmarks/full.sh MACHINE`."
    cells: dict[str, dict[str, float | None]] = {}
    for (line, threads), value in values(results, "kernels.Missed.track_missed").items():
        cells.setdefault(line, {})[threads] = value
    for (name, threads), value in values(results, "model.MissedStep.track_missed").items():
        cells.setdefault(f"pass of two layers, qd8-f32-qc8w, {name}", {})[threads] = value
    columns = list(dict.fromkeys(threads for row in cells.values() for threads in row))
    shown = {line: [_percent(row.get(c)) for c in columns] for line, row in cells.items()}
    rows = [[line, *row] for line, row in shown.items() if any(row)]
    machine = results["params"]
    about = f"{machine['cpu']}, {machine['num_cpu']} CPUs, {machine['ram']}, commit {results['commit_hash'][:8]}."
    return table(["left unused", *(f"{c} threads" for c in columns)], rows) + f"\n\n{about}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


TABLES: dict[str, Callable[[], str]] = {"asv_missed": missed}
