"""The view of `dllm run --visual`: the canvas after every step, drawn in place or as plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .terminal import Settings, is_tty, settings, terminal_size

if TYPE_CHECKING:
    from rich.text import Text

    from ..api import Engine
    from ..decoding.loop import Step
    from ..decoding.options import DecodeOptions

FRAME_S = 0.1  # at most ten frames a second, however fast the steps are
MASK, NEW, OLD, END = "mask", "new", "old", "end"
STYLES = {MASK: "bright_black", NEW: "bold black on green", OLD: "", END: "dim"}


class View(Protocol):
    def show(self, step: Step) -> None: ...


@contextmanager
def open_view(
    engine: Engine, prompt: list[int], options: DecodeOptions, pace: float, stdout_is_taken: bool
) -> Iterator[View]:
    """The view on whichever stream is a terminal, stderr first; plain lines on stderr where none is.

    pace: seconds that every step stays in view at least; 0 never slows the model.
    """
    canvas = CanvasPainter(engine, len(prompt), options)
    streams = [sys.stderr] if stdout_is_taken else [sys.stderr, sys.stdout]
    stream = next((s for s in streams if is_tty(s)), None)
    if stream is None:
        yield LineView(canvas, settings())
        return
    view = LiveView(canvas, stream, settings(), pace)
    try:
        yield view
    finally:
        view.close()


class CanvasPainter:
    """Turns a step into pieces (text, kind) of the generated part of its canvas."""

    def __init__(self, engine: Engine, prompt: int, options: DecodeOptions) -> None:
        facts = engine.model.facts
        self.prompt, self.options, self.mask = prompt, options, facts.mask_id
        self.ends = {i for i in (facts.eos_id, facts.eot_id) if i is not None}
        self.text: Callable[[int], str] = lru_cache(maxsize=65536)(
            (lambda i: f"{i} ") if engine.tokenizer is None else engine.tokenizer.token_text
        )

    def pieces(self, step: Step, new: set[int], mask: str, end: str) -> list[tuple[str, str]]:
        """One piece a token; `new` holds the positions committed since the last frame."""
        found = []
        for position, token in enumerate(step.canvas[0].tolist()[self.prompt :], self.prompt):
            if token == self.mask:
                found.append((mask, MASK))
            elif token in self.ends:
                found.append((end, NEW if position in new else END))
            else:
                found.append((self.text(token), NEW if position in new else OLD))
        return found

    def title(self, step: Step, new: int) -> str:
        total, blocks = self.options.total_steps, self.options.blocks
        left = int((step.canvas[0][self.prompt :] == self.mask).sum())
        return (
            f"step {step.index + 1}/{total}  block {step.block + 1}/{blocks}  +{new}  "
            f"{left} mask{'s' if left != 1 else ''} left  {1e3 * step.seconds:.0f} ms"
        )


class LineView:
    """One line a step, for logs and pipes: masks are `_`, the end token is `$`, line breaks are `\\n`."""

    def __init__(self, canvas: CanvasPainter, settings: Settings) -> None:
        self.canvas, self.settings = canvas, settings

    def show(self, step: Step) -> None:
        new = set(step.position.tolist())
        pieces = self.canvas.pieces(step, new, "_", "$")
        text = "".join(p for p, _ in pieces).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        self.settings.note(f"{self.canvas.title(step, len(new))}  |{text}|")


class LiveView:
    """The canvas redrawn in place with rich. It vanishes at the end: the answer on stdout is what stays."""

    def __init__(self, canvas: CanvasPainter, stream: TextIO, settings: Settings, pace: float) -> None:
        self.canvas, self.stream, self.settings, self.pace = canvas, stream, settings, pace
        self.new: set[int] = set()
        self.drawn_at = 0.0
        self.size = (0, 0)
        self.live: Any = None
        self.last: Step | None = None

    def show(self, step: Step) -> None:
        """Remember the step's commits; draw if the last frame is old enough."""
        self.new |= set(step.position.tolist())
        self.last = step
        if self.pace or time.monotonic() - self.drawn_at >= FRAME_S:
            self._draw(step)
            time.sleep(self.pace)

    def close(self) -> None:
        if self.live is not None:
            if self.new and self.last is not None:
                self._draw(self.last)
            self.live.stop()

    def _draw(self, step: Step) -> None:
        self._fit()
        self.live.update(self._frame(step), refresh=True)
        self.new.clear()
        self.drawn_at = time.monotonic()

    def _fit(self) -> None:
        """Start over when this very stream's terminal has another size: a frame must match the width it wraps at."""
        size = terminal_size(self.stream)
        if self.live is not None and size == self.size:
            return
        from rich.live import Live

        if self.live is not None:
            self.live.stop()
        self.size = size
        console = self.settings.console(self.stream)
        console.size = (size[0], size[1])
        self.live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self.live.start()

    def _frame(self, step: Step) -> Text:
        """Title and canvas, cut to the window so that no line scrolls away."""
        from rich.text import Text

        unicode = (self.stream.encoding or "").lower().startswith("utf")
        body = Text(no_wrap=False, overflow="fold")
        pieces = self.canvas.pieces(step, self.new, *(("░", "·") if unicode else ("_", "$")))
        for kind, run in groupby(pieces, key=lambda piece: piece[1]):
            body.append(_visible("".join(text for text, _ in run)), STYLES[kind])
        width, height = self.size
        lines = body.wrap(self.live.console, max(width - 1, 1), overflow="fold")
        room = max(height - 3, 1)
        first = max(0, min(_active_line(lines, STYLES[MASK]) - room // 2, len(lines) - room))
        title = Text(self.canvas.title(step, len(self.new)), style="dim", no_wrap=True, overflow="ellipsis")
        title.truncate(max(width - 1, 1), overflow="ellipsis")
        return Text("\n").join([title, *lines[first : first + room]])


def _visible(piece: str) -> str:
    """Control characters would move the cursor: show them. Line breaks are kept."""
    return "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in piece.replace("\t", "    "))


def _active_line(lines: Any, mask_style: str) -> int:
    """The first line with a mask: where the decoder is at work."""
    return next((i for i, line in enumerate(lines) if any(s.style == mask_style for s in line.spans)), len(lines) - 1)
