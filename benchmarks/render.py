"""Fill the marked tables of README and docs from the result files in docs/results/ and from the code itself.

    python benchmarks/render.py          rewrite the tables
    python benchmarks/render.py --check  exit 1 if a table differs from its result file, or a figure is typed by hand

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function of this file or of
`decoding_tables.py`. Needs dllm installed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
# pages whose measured figures all stand in tables, and what such a figure looks like outside of code
RENDERED = ("docs/decoding.md",)
FIGURE = re.compile(r"\d[\d.,]*\s?(?:%|x\b|ms\b|times\b|points\b|passes\b|tokens/s)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.S)
PATTERN = re.compile(r"(<!-- table: ([a-z_]+) -->\n).*?(<!-- end -->)", re.S)


SCHEMES = ("f32", "bf16", "qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w")


def load(name: str) -> dict:
    return json.loads((RESULTS / name).read_text())


def percent(cell: dict) -> str:
    return f"{100 * cell['exact'] / cell['prompts']:.1f} %"


def table_row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def tiny_accuracy() -> str:
    """Held-out exact match of the model inside, float32 beside int8."""
    names = [f"tiny-{scheme}.json" for scheme in SCHEMES]
    missing = [name for name in names if not (RESULTS / name).exists()]
    if missing:
        return f"Not measured yet: `dllm judge --json --scheme SCHEME > docs/results/{missing[0]}`."
    runs = [load(name) for name in names]
    lines = [table_row("task", "prompts", *(run["scheme"] for run in runs)), "|---|---:|" + "---:|" * len(runs)]
    for task, cell in runs[0]["tasks"].items():
        lines.append(table_row(task, cell["prompts"], *(percent(run["tasks"][task]) for run in runs)))
    lines.append(table_row("**all**", runs[0]["prompts"], *(f"**{percent(run)}**" for run in runs)))
    first = runs[0]
    lines.append("")
    lines.append(
        f"Exact match on prompts that training never saw; canvas {first['max_tokens']}, block {first['block_length']}, "
        f"{first['steps']} steps (one token a step)."
    )
    return "\n".join(lines)


def quantisation_error() -> str:
    """Four-bit rules beside each other, for every kind of weights and group."""
    results = load("quantisation-error.json")["results"]
    rules = list(dict.fromkeys(r["rule"] for r in results))
    lines = [table_row("weights", "group", *rules), "|---|---:|" + "---:|" * len(rules)]
    for weights, group in dict.fromkeys((r["weights"], r["group"]) for r in results):
        cells = {r["rule"]: r["error"] for r in results if (r["weights"], r["group"]) == (weights, group)}
        lines.append(table_row(weights, group, *(f"{100 * cells[rule]:.1f} %" for rule in rules)))
    return "\n".join(lines)


def typed_figures(text: str) -> list[str]:
    """Measured figures outside of the marked tables and of code."""
    return FIGURE.findall(CODE.sub("", PATTERN.sub("", text)))


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from benchmarks.asv_tables import TABLES as ASV
    from benchmarks.decoding_tables import TABLES as DECODING
    from benchmarks.performance_tables import TABLES as PERFORMANCE

    tables = {
        "tiny_accuracy": tiny_accuracy,
        "quantisation_error": quantisation_error,
        **DECODING,
        **PERFORMANCE,
        **ASV,
    }
    check = "--check" in sys.argv[1:]
    stale, typed = [], []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        new = PATTERN.sub(lambda m: f"{m[1]}{tables[m[2]]()}\n{m[3]}", text)
        name = str(page.relative_to(ROOT))
        if name in RENDERED and typed_figures(text):
            typed.append(name)
        if new != text:
            stale.append(name)
            if not check:
                page.write_text(new)
    if typed:
        print(f"figures typed by hand, outside of tables, in: {', '.join(typed)}", file=sys.stderr)
    if check and stale:
        print(f"tables differ from docs/results in: {', '.join(stale)}; run benchmarks/render.py", file=sys.stderr)
    return 1 if typed or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
