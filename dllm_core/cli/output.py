"""Writing results to stdout: text, JSON and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from .terminal import settings

SCHEMA = 1  # version of every JSON object the command line prints


def write_text(text: str) -> None:
    """`text` with one final newline."""
    click.echo(text.rstrip("\n"))


def write_json(fields: dict[str, Any]) -> None:
    """One object on one line, ASCII, so that every terminal and pipe can carry it."""
    click.echo(json.dumps({"schema": SCHEMA, **fields}))


def write_ids(ids: Iterable[int]) -> None:
    """Ids in the form that --prompt-ids reads."""
    click.echo(",".join(map(str, ids)))


def write_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str] = (), header: bool = True
) -> None:
    """An aligned table; the columns named in `right` hold numbers. Cells are strings or rich texts."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=header)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = settings().console(sys.stdout)
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():
        click.echo(line.rstrip(), color=True)
