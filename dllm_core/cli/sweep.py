"""`dllm sweep`: accuracy against forward passes and time, over a grid of decoding settings."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import NotFoundError, UsageError, quote
from .options import engine_options, json_option
from .output import write_json, write_table
from .progress import Progress
from .terminal import settings

if TYPE_CHECKING:
    from ..sweep.result import Point, Sweep

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Accuracy against passes and time, over many settings.")
@engine_options
@click.option("--tasks", "task_file", type=FILE, help="JSON lines; the held-out tasks of the model if not given.")
@click.option(
    "--grid", default="default", show_default=True, metavar="NAME|FILE.toml", help="default, quick or a file."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only N prompts of each kind of task.")
@click.option(
    "--together", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
    help="Prompts in one batch: faster, but a batch shares its passes.",
)  # fmt: skip
@click.option("--out", type=FILE, required=True, metavar="RESULT.json", help="Result file; goes on where it stopped.")
@click.option("--no-run", is_flag=True, help="Run nothing: show the result file as it is.")
@click.option(
    "--table", is_flag=False, flag_value="text", type=click.Choice(["text", "markdown"]), help="Print a table."
)
@click.option("--plot", type=FILE, metavar="OUT.svg|png", help="Draw accuracy against passes and time (extra: plot).")
@json_option
def command(
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    task_file: Path | None,
    grid: str,
    limit: int | None,
    together: int,
    out: Path,
    no_run: bool,
    table: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Answer a task file under every setting of a grid and measure accuracy, forward passes and time.

    \b
      dllm sweep --out sweep.json --table --plot sweep.svg
      dllm sweep --grid quick --limit 5 --out quick.json --table
      dllm sweep --no-run --out sweep.json --table markdown

    A line of a task file is {"task": KIND, "prompt": TEXT, "answer": TEXT, "compare": HOW}; HOW is exact (the
    default), contains, json, number or regex. A grid file has [[setting]] tables of decoding options; a list makes
    a setting of each of its values. Every finished setting is saved: the same command goes on after an interruption.
    """
    from ..sweep import plot as drawing
    from ..sweep.result import read

    if plot is not None:
        drawing.check(plot)
    if as_json and table:
        raise UsageError("--json and --table exclude each other", "give one of them")
    if not out.absolute().parent.is_dir():
        raise NotFoundError(f"the folder of --out {quote(str(out))} does not exist")
    sweep = read(out) if no_run else _run(model, backend, scheme, threads, task_file, grid, limit, together, out)
    if plot is not None:
        drawing.draw(sweep, plot)
    if as_json:
        write_json({"out": str(out), **asdict(sweep)})
    elif table is not None:
        _show(sweep, table)


def _run(
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    task_file: Path | None,
    grid: str,
    limit: int | None,
    together: int,
    out: Path,
) -> Sweep:
    from ..api import load, model_path
    from ..plugins import load_registry
    from ..sweep import run
    from ..sweep.grid import load_grid
    from ..sweep.tasks import default_tasks, limited, read_tasks

    registry = load_registry()
    source = task_file or default_tasks(registry, model)
    tasks = read_tasks(source)
    tasks = tasks if limit is None else limited(tasks, limit)
    with Progress("loading", sys.stderr) as bar:
        engine = load(model, backend=backend, scheme=scheme, threads=threads, registry=registry, progress=bar.update)
    cells = load_grid(grid, engine)
    fresh = run.begin(engine, model_path(model, registry), tasks, source.name, cells, together)
    total = len(cells.settings)

    def tell(point: Point, done: int) -> None:
        settings().note(
            f"{done}/{total} {point.name}: {point.accuracy:.1%}, {point.forward_passes:.1f} passes, "
            f"{point.ms_per_prompt:.1f} ms a prompt"
        )

    try:
        with Progress("sweep", sys.stderr) as bar:
            return run.run(engine, fresh, tasks, cells, out, lambda name, done, n: bar.update(done, n), tell)
    except KeyboardInterrupt:
        settings().note(f"stopped; {out} keeps every finished setting, the same command goes on")
        raise


def _show(sweep: Sweep, form: str) -> None:
    from ..sweep import table

    if form == "markdown":
        click.echo(table.markdown(table.COLUMNS, table.rows(sweep)))
    else:
        write_table(table.COLUMNS, table.rows(sweep), table.COLUMNS[1:])
    left = len(sweep.grid["settings"]) - len(sweep.points)
    for text in [table.LEGEND, *sweep.notes, *([f"{left} settings are not measured yet"] if left else [])]:
        settings().note(text)
