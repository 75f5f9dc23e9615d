"""A progress bar that only appears when there is something to wait for."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, TextIO

from .terminal import can_redraw, settings

PATIENCE_S = 0.5  # work that is faster than this shows no bar
FRAME_S = 0.1
LINE_EVERY_S = 30.0  # without a terminal


class Progress:
    """`update(done, total)` draws a bar on a terminal, else one line every 30 s; nothing with --quiet."""

    def __init__(self, what: str, stream: TextIO) -> None:
        self.what, self.stream, self.settings = what, stream, settings()
        self.bar: Any = None
        self.task: Any = None
        self.line_at = LINE_EVERY_S
        self.drawn_at = 0.0

    def __enter__(self) -> Progress:
        self.began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, total: int) -> None:
        elapsed = time.perf_counter() - self.began
        if self.settings.quiet or elapsed < PATIENCE_S:
            return
        if not can_redraw(self.stream):
            if elapsed >= self.line_at:
                self.line_at = elapsed + LINE_EVERY_S
                self.settings.note(f"{self.what} {done}/{total}, {elapsed:.0f} s")
            return
        if self.bar is None:
            self._start(total)
        now = time.perf_counter()
        if now - self.drawn_at >= FRAME_S:
            self.drawn_at = now
            self.bar.update(self.task, completed=done, total=total, refresh=True)

    def _start(self, total: int) -> None:
        from rich import progress as parts

        self.bar = parts.Progress(
            parts.TextColumn("{task.description}"),
            parts.BarColumn(bar_width=None),
            parts.MofNCompleteColumn(),
            parts.TimeRemainingColumn(compact=True),
            console=self.settings.console(self.stream),
            transient=True,
            auto_refresh=False,  # no thread beside the model's
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=total)
