"""`dllm check`: every backend and instruction set against the reference."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .options import BACKEND, MODEL, json_option, thread_count, threads_option
from .output import write_json, write_table
from .terminal import settings

if TYPE_CHECKING:
    from ..testing.check import CheckRow


@click.command(short_help="Compare all backends with the reference.")
@click.option("--model", "-m", type=MODEL, metavar="NAME|FOLDER", help="Model to run once; a random one if not given.")
@click.option(
    "--backend", "-b", "names", type=BACKEND, multiple=True, metavar="NAME", help="Only this one; repeatable."
)
@threads_option
@json_option
@click.pass_context
def command(ctx: click.Context, model: str | None, names: tuple[str, ...], threads: int | None, as_json: bool) -> None:
    """Run the operator cases and one forward pass on every available backend and instruction set.

    What is integer must be equal bit for bit, floats must stay within the tolerance shown. Exit code 1 if any row
    fails.
    """
    from ..plugins import load_registry
    from ..testing.check import run_checks

    registry = load_registry()
    rows = run_checks(registry, model, thread_count(threads), list(names) or None)
    failed = [row for row in rows if not row.ok]
    if as_json:
        write_json({"ok": not failed, "rows": [asdict(row) for row in rows]})
    else:
        show(rows)
    for name in [] if names else sorted(set(registry.backends) - {row.backend for row in rows}):
        if registry.backends[name].priority < 0:
            continue  # nobody gets it without asking, so nobody misses it
        settings().warn(f"backend {name} cannot run here and was left out: see dllm backends")
    for row in failed:
        settings().note(f"{row.backend} {row.isa} {row.case}: {row.detail}", "error")
    ctx.exit(1 if failed else 0)


def show(rows: list[CheckRow]) -> None:
    """The table, and one line that sums it up."""
    from rich.text import Text

    def cells(row: CheckRow) -> list[Any]:
        exact = {True: "exact", False: "differs", None: ""}[row.exact]
        numbers = [_number(row.max_error), _number(row.nmse), _number(row.tolerance)]
        return [
            row.backend,
            row.isa,
            row.case,
            exact,
            *numbers,
            Text("ok", "green") if row.ok else Text("FAIL", "bold red"),
        ]

    columns = ["backend", "isa", "case", "integers", "max error", "NMSE", "tolerance", ""]
    write_table(columns, [cells(row) for row in rows], ["max error", "NMSE", "tolerance"])
    failed = sum(not row.ok for row in rows)
    click.echo(f"\n{len(rows)} checks, {failed} failed" if failed else f"\n{len(rows)} checks, all ok")


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"
