"""Errors as a user sees them: one line that says what is wrong, one that says what to do, and an exit code."""

from __future__ import annotations

import errno
import json
import sys
import traceback
from dataclasses import dataclass

import click

from ..errors import DllmError
from .terminal import NOTE_COLORS, Settings

INTERRUPTED = 130


@dataclass(frozen=True)
class Failure:
    kind: str
    message: str
    hint: str | None
    code: int


def explain(error: BaseException) -> Failure:
    """The words and the exit code for any exception."""
    if isinstance(error, DllmError):
        return Failure(type(error).__name__, error.message, error.hint, error.exit_code)
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "dllm"
        near = getattr(error, "possibilities", None)
        hint = f"did you mean {' or '.join(sorted(near))}? " if near else ""
        words = (
            error.message if near else error.format_message()
        )  # click's own form puts the suggestions into the message
        return Failure("UsageError", _plain(words), f"{hint}see: {where} --help", 2)
    if isinstance(error, click.ClickException):
        return Failure(type(error).__name__, _plain(error.format_message()), None, error.exit_code)
    if isinstance(error, MemoryError):
        hint = "use an int8 scheme (--scheme), a shorter canvas (--max-tokens) or a smaller model"
        return Failure("DoesNotFitError", f"not enough memory{': ' + str(error) if str(error) else ''}", hint, 4)
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename is not None else ""
        code = {errno.ENOENT: 3, errno.ENOSPC: 4, errno.EDQUOT: 4}.get(error.errno or 0, 1)
        return Failure(type(error).__name__, error.strerror[0].lower() + error.strerror[1:] + name, None, code)
    words = f"internal error: {type(error).__name__}: {error}"
    return Failure("InternalError", words, "run again with --debug for the traceback", 1)


def report(error: BaseException, settings: Settings) -> int:
    """Write `error` to stderr and return the exit code. The traceback only comes with --debug."""
    failure = explain(error)
    if settings.debug:
        traceback.print_exception(error, file=sys.stderr)
    message, hint = _one_line(failure.message), _one_line(failure.hint or "") or None
    if settings.json:
        click.echo(json.dumps({"error": {"type": failure.kind, "message": message, "hint": hint}}), err=True)
        return failure.code
    color = settings.colored(sys.stderr)
    for kind, text in (("error", message), ("hint", hint)):
        if text:
            click.echo(f"{click.style(kind + ':', fg=NOTE_COLORS[kind], bold=True)} {text}", err=True, color=color)
    return failure.code


def _plain(text: str) -> str:
    """click's message in our manner: no capital, no full stop."""
    text = text.rstrip(".")
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if first.istitle() else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
