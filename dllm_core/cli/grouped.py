"""Help pages whose options stand in groups."""

from __future__ import annotations

from typing import Any

import click


class GroupedOption(click.Option):
    """An option that the help shows under the heading `group`."""

    def __init__(self, *args: Any, group: str, **given: Any) -> None:
        super().__init__(*args, **given)
        self.group = group


class GroupedCommand(click.Command):
    """Options without a group come first, then group after group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", "Options"), []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
