"""`dllm strategies`: the named sets of decoding options."""

from __future__ import annotations

import shlex
from typing import Any

import click

from ..decoding.options import flag
from .options import json_option
from .output import write_json, write_table


@click.command(short_help="List the named decoding strategies.")
@json_option
def command(as_json: bool) -> None:
    """List the named strategies: what --strategy NAME stands for, and when it is good.

    A strategy stands over the model's own defaults and under the options that are given beside it.
    """
    from ..plugins import load_registry

    strategies = load_registry().strategies
    if as_json:
        found = [{"name": name, "options": s.options, "summary": s.summary} for name, s in strategies.items()]
        write_json({"strategies": found})
        return
    rows = [(name, s.summary, spelled(s.options)) for name, s in strategies.items()]
    write_table(["strategy", "what it does", "the same as"], rows)


def spelled(options: dict[str, Any]) -> str:
    """The options as one would type them."""
    words: list[str] = []
    for key, value in options.items():
        if key == "suppress_ids":
            words += [flag(key), ",".join(map(str, value))]
        elif isinstance(value, bool):
            words += [flag(key)] if value else []
        else:
            for one in value if isinstance(value, tuple | list) else [value]:
                words += [flag(key), str(one)]
    return shlex.join(words)
