"""The view of `dllm run --visual`: the canvas after every step, drawn in place or as plain lines."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .terminal import Settings, can_redraw, settings, terminal_size

if TYPE_CHECKING:
    from rich.text import Text

    from ..api import Engine
    from ..decoding.loop import Step
    from ..decoding.options import DecodeOptions

FRAME_S = 0.1  # at most ten frames a second, however fast the steps are
MASK, NEW, OLD, END, BACK = "mask", "new", "old", "end", "back"
STYLES = {MASK: "bright_black", NEW: "bold black on green", OLD: "", END: "dim", BACK: "bold white on red"}


class View(Protocol):
    def show(self, step: Step) -> None: ...


@contextmanager
def open_view(
    engine: Engine, prompt: int, options: DecodeOptions, pace: float, stdout_is_taken: bool
) -> Iterator[View]:
    """The view on whichever stream is a terminal, stderr first; plain lines on stderr where none is.

    prompt: the first position that is shown. pace: seconds that every step stays in view at least; 0 never slows
    the model.
    """
    canvas = CanvasPainter(engine, prompt, options)
    streams = [sys.stderr] if stdout_is_taken else [sys.stderr, sys.stdout]
    stream = next((s for s in streams if can_redraw(s)), None)
    if stream is None:
        yield LineView(canvas, settings())
        return
    view = LiveView(canvas, stream, settings(), pace)
    try:
        yield view
    finally:
        view.close()


@dataclass
class Changed:
    """Positions that were committed, and taken back, since the last frame."""

    new: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)

    def add(self, step: Step) -> None:
        self.new |= set(step.position.tolist())
        self.back |= set(step.revoked[0].tolist())

    def clear(self) -> None:
        self.new.clear()
        self.back.clear()


class CanvasPainter:
    """Turns a step into pieces (text, kind) of its canvas from position `prompt` on."""

    def __init__(self, engine: Engine, prompt: int, options: DecodeOptions) -> None:
        facts = engine.model.facts
        self.prompt, self.options, self.mask = prompt, options, facts.mask_id
        self.ends = {i for i in (facts.eos_id, facts.eot_id) if i is not None}
        self.text: Callable[[int], str] = lru_cache(maxsize=65536)(
            (lambda i: f"{i} ") if engine.tokenizer is None else engine.tokenizer.token_text
        )

    def pieces(self, step: Step, changed: Changed, mask: str, back: str, end: str) -> list[tuple[str, str]]:
        """One piece a token; `changed` since the last frame."""
        found = []
        for position, token in enumerate(step.canvas[0].tolist()[self.prompt :], self.prompt):
            if token == self.mask:
                found.append((back, BACK) if position in changed.back else (mask, MASK))
            elif token in self.ends:
                found.append((end, NEW if position in changed.new else END))
            else:
                found.append((self.text(token), NEW if position in changed.new else OLD))
        return found

    def title(self, step: Step, changed: Changed, columns: int = 80) -> str:
        total, blocks = self.options.total_steps, self.options.blocks
        left = int((step.canvas[0][self.prompt :] == self.mask).sum())
        counts = f"+{len(changed.new)}" + (f" -{len(changed.back)}" if changed.back else "")
        if columns < 60:
            return f"{step.index + 1}/{total}  block {step.block + 1}/{blocks}  {counts}  {left} left"
        return (
            f"step {step.index + 1}/{total}  block {step.block + 1}/{blocks}  {counts}  "
            f"{left} mask{'s' if left != 1 else ''} left  {1e3 * step.seconds:.0f} ms"
        )


class LineView:
    """One line a step, for logs and pipes: masks are `_`, or `~` where a token was taken back in this step, the end
    token is `$`, line breaks are `\\n`."""

    def __init__(self, canvas: CanvasPainter, settings: Settings) -> None:
        self.canvas, self.settings = canvas, settings

    def show(self, step: Step) -> None:
        changed = Changed()
        changed.add(step)
        pieces = self.canvas.pieces(step, changed, "_", "~", "$")
        text = "".join(p for p, _ in pieces).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        self.settings.note(f"{self.canvas.title(step, changed)}  |{text}|")


@contextmanager
def whole() -> Iterator[None]:
    """Ctrl-C waits until the frame is drawn: half of one could not be wiped away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if asked:
        raise KeyboardInterrupt


class LiveView:
    """The canvas redrawn in place with rich. It vanishes at the end: the answer on stdout is what stays."""

    def __init__(self, canvas: CanvasPainter, stream: TextIO, settings: Settings, pace: float) -> None:
        self.canvas, self.stream, self.settings, self.pace = canvas, stream, settings, pace
        self.changed = Changed()
        self.drawn_at = 0.0
        self.size = (0, 0)
        self.live: Any = None
        self.last: Step | None = None

    def show(self, step: Step) -> None:
        """Remember the step's commits; draw if the last frame is old enough."""
        self.changed.add(step)
        self.last = step
        if self.pace or time.monotonic() - self.drawn_at >= FRAME_S:
            self._draw(step)
            time.sleep(self.pace)

    def close(self) -> None:
        if self.live is not None:
            try:
                if (self.changed.new or self.changed.back) and self.last is not None:
                    self._draw(self.last)
            finally:
                with whole():
                    self.live.stop()

    def _draw(self, step: Step) -> None:
        with whole():
            self._fit()
            self.live.update(self._frame(step), refresh=True)
            self.changed.clear()
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
        pieces = self.canvas.pieces(step, self.changed, *(("░", "▒", "·") if unicode else ("_", "~", "$")))
        for kind, run in groupby(pieces, key=lambda piece: piece[1]):
            body.append(_visible("".join(text for text, _ in run)), STYLES[kind])
        width, height = self.size
        lines = body.wrap(self.live.console, max(width - 1, 1), overflow="fold")
        room = max(height - 3, 1)
        first = max(0, min(_active_line(lines, STYLES[MASK]) - room // 2, len(lines) - room))
        title = Text(self.canvas.title(step, self.changed, width), style="dim", no_wrap=True, overflow="ellipsis")
        title.truncate(max(width - 1, 1), overflow="ellipsis")
        return Text("\n").join([title, *lines[first : first + room]])


def _visible(piece: str) -> str:
    """Control characters would move the cursor: show them. Line breaks are kept."""
    return "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in piece.replace("\t", "    "))


def _active_line(lines: Any, mask_style: str) -> int:
    """The first line with a mask: where the decoder is at work."""
    return next((i for i, line in enumerate(lines) if any(s.style == mask_style for s in line.spans)), len(lines) - 1)
