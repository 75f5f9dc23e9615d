"""What one invocation knows of its streams: colour, quietness, and notes that go to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

COLORS = ("auto", "always", "never")


@dataclass
class Settings:
    """The options that every verb accepts, before it or after it."""

    debug: bool = False
    quiet: bool = False
    color: str = "auto"
    json: bool = False  # errors are JSON too

    @classmethod
    def scan(cls, arguments: Sequence[str]) -> Settings:
        """What must be known even when the arguments do not parse."""
        words = list(arguments)
        flags = words[: words.index("--")] if "--" in words else words
        debug = os.environ.get("DLLM_DEBUG", "").lower() in ("1", "true", "yes", "on")
        return cls(debug=debug or "--debug" in flags, json="--json" in flags)

    def colored(self, stream: IO[Any]) -> bool:
        """Whether to write colours to `stream`: --color, then NO_COLOR, then FORCE_COLOR, then whether it is a tty."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return can_redraw(stream)

    def note(self, text: str, kind: str = "") -> None:
        """One line on stderr, with --quiet only errors. `kind` ("warning", "hint") is written in front and coloured."""
        if not self.quiet or kind == "error":
            styled = click.style(f"{kind}:", fg=NOTE_COLORS.get(kind), bold=True) + " " if kind else ""
            click.echo(styled + text, err=True, color=self.colored(sys.stderr))

    def warn(self, text: str) -> None:
        self.note(text, "warning")

    def console(self, stream: TextIO) -> Console:
        """A rich console on `stream`; without a terminal lines are as long as they need to be."""
        from rich.console import Console

        tty, colored = is_tty(stream), self.colored(stream)
        plain = self.color == "never" or not (tty or colored)  # NO_COLOR on a terminal leaves bold and dim
        return Console(
            file=stream,
            width=terminal_size(stream)[0] if tty else 10_000,
            color_system=None if plain else "auto" if tty else "standard",
            no_color=not colored,
            force_terminal=tty,
            highlight=False,
            markup=False,
            emoji=False,
        )


NOTE_COLORS = {"error": "red", "warning": "yellow", "hint": "cyan"}


def settings() -> Settings:
    """The settings of the running invocation."""
    found = click.get_current_context().find_object(Settings)
    assert found is not None  # main() always gives one
    return found


def is_tty(stream: IO[Any]) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # no stream, or a closed one
        return False


def can_redraw(stream: IO[Any]) -> bool:
    """Whether lines on `stream` can be drawn over: a terminal that moves its cursor."""
    return is_tty(stream) and os.environ.get("TERM") != "dumb"


def terminal_size(stream: IO[Any]) -> tuple[int, int]:
    """(columns, rows) of the terminal behind this very stream; 80 x 24 where it does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24
