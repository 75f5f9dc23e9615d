"""Errors a user can meet. Each carries the exit code of the command line and, where there is one, the way out."""

from __future__ import annotations

import reprlib
from typing import Any


class DllmError(Exception):
    """The work failed. `message` names the thing and the value; `hint` says what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DllmError):
    """A flag, an argument or a combination of them is wrong."""

    exit_code = 2


class NotFoundError(DllmError):
    """A model, a file or a row does not exist."""

    exit_code = 3


class DoesNotFitError(DllmError):
    """Not enough memory or disk."""

    exit_code = 4


class NetworkError(DllmError):
    """Network, authentication or a gated repository."""

    exit_code = 5


class UnsupportedError(DllmError):
    """The model, a config key, a scheme or a combination is not implemented."""

    exit_code = 6


class BackendUnavailable(UnsupportedError):
    """A backend exists but cannot run here; the message says why."""


class CheckpointError(DllmError):
    """A model file is damaged or does not hold what its config promises."""


class TraceError(DllmError):
    """A trace file is damaged or of another version."""


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 80
_BRIEF.maxlevel = 3


def quote(value: Any) -> str:
    """A value from somebody else's file, fit for a message: one line, short, control characters escaped."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # a whole number with more digits than Python converts
        return f"<{type(value).__name__}>"
