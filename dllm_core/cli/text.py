"""Where a prompt comes from: the argument, standard input, or token ids."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any, TextIO

from ..errors import UsageError, quote
from .terminal import is_tty, settings

PATIENCE_S = 2.0  # silence of a pipe after which the user is told what we wait for


def read_prompt(words: Sequence[str], ids: Sequence[int] | None, use_stdin: bool, example: str) -> str | list[int]:
    """The prompt of a verb: its text, or the ids of --prompt-ids.

    Text on standard input comes first, then a blank line, then the argument. `-` demands standard input; else
    it is read when it is a pipe or a file. With ids it is left alone.
    """
    if ids is not None:
        if words:
            raise UsageError(
                f"both a text ({quote(words[0])}) and --prompt-ids are given", "give one of them: a text, or token ids"
            )
        return list(ids)
    if len(words) > 1:
        raise _several(words, example)
    demanded = list(words) == ["-"]
    if demanded and not use_stdin:
        raise UsageError("both - and --no-stdin are given", "- reads the prompt from standard input: drop one of them")
    parts = [] if demanded else list(words)
    if demanded or (use_stdin and carries_text(sys.stdin)):
        parts.insert(0, _read(sys.stdin))
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UsageError("the prompt is empty" if parts else "there is no prompt", f"for example: {example}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"the prompt is not valid UTF-8: {quote(text)}") from None
    return text


def carries_text(stream: IO[Any] | None) -> bool:
    """Whether `stream` is a pipe or a regular file. A terminal, a socket or a device may never end: not read."""
    try:
        mode = os.fstat(stream.fileno()).st_mode if stream is not None else 0
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _several(words: Sequence[str], example: str) -> UsageError:
    from ..plugins import load_registry

    if words[0] in load_registry().models:
        verb = example.split()[1]
        return UsageError(
            f"{quote(words[0])} is a model, not a prompt",
            f"write: dllm {verb} -m {words[0]} {quote(' '.join(words[1:]))}",
        )
    return UsageError(f"{len(words)} arguments where one prompt is expected", f"quote the prompt: {example}")


def _read(stream: TextIO) -> str:
    """All of `stream` as text, without its final line ends."""
    note = settings().note
    if is_tty(stream):
        note("reading the prompt from the terminal, Ctrl-D ends it", "hint")
        return stream.read().rstrip("\r\n")
    hint = threading.Timer(
        PATIENCE_S, note, ["waiting for text on standard input (--no-stdin leaves it alone)", "hint"]
    )
    hint.daemon = True
    hint.start()
    try:
        stream.buffer.peek(1)  # type: ignore[attr-defined]  # returns at the first byte or the end
        hint.cancel()
        return stream.buffer.read().decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8 text: bad byte at {error.start}", "--no-stdin leaves it alone"
        ) from None
    finally:
        hint.cancel()
