"""The tables of docs/performance.md, from the JSON that `dllm bench` and the scripts of this folder print:
docs/results/bench-KIND*.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
Row = dict[str, Any]


def results(kind: str) -> list[Row]:
    """All results of one subcommand, in order of file names."""
    found = []
    for path in sorted(RESULTS.glob(f"bench-{kind}*.json")):
        found += json.loads(path.read_text())["results"]
    return found


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def milliseconds(row: Row) -> str:
    return f"{row['ms']:.2f} ({row['ms_p25']:.2f}-{row['ms_p75']:.2f})"


# title and contents of the columns
Columns = Sequence[tuple[str, Callable[[Row], object]]]
WHO: Columns = [
    ("backend", lambda r: f"{r['backend']} {r['isa']}"),
    ("scheme", lambda r: r["scheme"]),
    ("threads", lambda r: r["threads"]),
]
RATES: Columns = [
    ("ms (quartiles)", milliseconds),
    ("GOP/s", lambda r: f"{r['gops']:.0f}"),
    ("of peak", lambda r: percent(r["share_of_peak"])),
    ("of bandwidth", lambda r: percent(r["share_of_bandwidth"])),
]
HANDOVER: Columns = [
    ("hand-over, ns", lambda r: f"{r['handover_ns']:.0f}" if r.get("handover_ns") else ""),
    ("memory, GB/s", lambda r: f"{r['bandwidth']:.0f}"),
]
KERNEL: Columns = [*WHO, ("shape", lambda r: r["shape"]), ("rows", lambda r: r["rows"]), *RATES, *HANDOVER]
STEP: Columns = [
    *WHO,
    ("model", lambda r: r["shape"]),
    ("rows", lambda r: r["rows"]),
    ("head", lambda r: r["head_rows"]),
    ("cached", lambda r: r["cached"]),
    *RATES,
    ("at most", lambda r: percent(r.get("at_most"))),
    *HANDOVER,
]
DECODE: Columns = [
    *WHO,
    ("model", lambda r: r["shape"]),
    ("strategy", lambda r: r["strategy"]),
    ("passes", lambda r: r["forward_passes"]),
    ("answer, ms", lambda r: f"{r['answer_ms']:.1f}"),
    *RATES,
]
PEAK: Columns = [
    ("what", lambda r: r["what"]),
    ("how", lambda r: r["instruction"]),
    ("threads", lambda r: r["threads"]),
    ("rate (quartiles)", lambda r: f"{r['rate']:.1f} ({r['rate_p25']:.1f}-{r['rate_p75']:.1f}) {r['unit']}"),
]


def spread(name: str, digits: int) -> Callable[[Row], str]:
    """The median and quartiles of a quantity."""
    return lambda r: f"{r[name]:.{digits}f} ({r[f'{name}_p25']:.{digits}f}-{r[f'{name}_p75']:.{digits}f})"


NEIGHBOUR: Columns = [
    ("work", lambda r: r["what"]),
    ("threads", lambda r: r["threads"]),
    ("alone, ms (quartiles)", spread("alone_ms", 2)),
    ("beside a busy process, ms (quartiles)", spread("beside_ms", 2)),
    ("of one thread's time beside it", lambda r: f"{100 * r['beside_to_one_thread']:.0f} %"),
]
PROCESS: Columns = [("process", lambda r: f"`{r['command']}`"), ("s (quartiles)", spread("s", 3))]
PACKED: Columns = [
    ("model", lambda r: r["model"]),
    ("scheme", lambda r: r["scheme"]),
    ("file", lambda r: f"{r['file_bytes'] / 1e9:.2f} GB"),
    ("imports done, s", spread("imports_s", 2)),
    ("open, s", spread("open_s", 2)),
    ("first pass done, s", spread("first_s", 2)),
    ("peak memory after passes of 128 rows", lambda r: f"{r['peak_rss_bytes'] / 1e9:.2f} GB"),
    ("of it packed weights", lambda r: f"{r['weight_bytes'] / 1e9:.2f} GB"),
    ("beyond", lambda r: percent(r["beyond_weights"])),
]


def table(kind: str, columns: Columns) -> str:
    rows = results(kind)
    if not rows:
        return f"Not measured yet: `benchmarks/measure.sh --only 'bench-{kind}*'`."
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[str(cell(row)) for _, cell in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def profile() -> str:
    """Where the time of each measured step goes."""
    rows = results("step")
    if not rows:
        return "Not measured yet."
    kinds = sorted({kind for row in rows for kind in row["split"]})
    columns: Columns = [
        ("step", lambda r: f"{r['rows']} rows, {r['cached']} cached, {r['threads']} threads"),
        *((kind, lambda r, kind=kind: percent(r["split"].get(kind, 0.0) / r["ms"])) for kind in kinds),
    ]
    return table("step", columns)


TABLES: dict[str, Callable[[], str]] = {
    "bench_peak": lambda: table("peak", PEAK),
    "bench_kernel": lambda: table("kernel", KERNEL),
    "bench_step": lambda: table("step", STEP),
    "bench_decode": lambda: table("decode", DECODE),
    "bench_profile": profile,
    "bench_neighbour": lambda: table("neighbour", NEIGHBOUR),
    "bench_process": lambda: table("process", PROCESS),
    "bench_packed": lambda: table("packed", PACKED),
}
