"""What the verbs that decode show and keep of the steps: --visual, --pace, --trace, else a progress bar."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError

if TYPE_CHECKING:
    from ..api import Engine
    from ..decoding.loop import Step
    from ..decoding.options import DecodeOptions
    from ..trace import TraceWriter


@dataclass
class Watch:
    """The options of `watch_options`; inside `opened` the trace file is open."""

    visual: bool
    pace: float
    trace: Path | None
    writer: TraceWriter | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the trace file, before anything slow is done; at the end, without an error, it gets its name."""
        if self.trace is None:
            yield
            return
        from ..trace import TraceWriter

        with TraceWriter(self.trace) as self.writer:
            yield

    @contextmanager
    def steps(
        self, engine: Engine, canvas: list[int], prompt: int, options: DecodeOptions, as_json: bool
    ) -> Iterator[Callable[[Step], None]]:
        """The function that sees every step. `canvas` is the sequence before the first one; the view shows it from
        position `prompt` on."""
        with ExitStack() as stack:
            if self.visual:
                from .visual import open_view

                watchers = [stack.enter_context(open_view(engine, prompt, options, self.pace, as_json)).show]
            else:
                from .progress import Progress

                bar = stack.enter_context(Progress("step", sys.stderr))
                watchers = [lambda step: bar.update(step.index + 1, options.total_steps)]
            if self.writer is not None:
                self.writer.begin(engine, options, canvas)
                watchers.append(self.writer.step)

            def show(step: Step) -> None:
                for watcher in watchers:
                    watcher(step)

            yield show


def watch_options(function: Callable[..., Any]) -> Any:
    """Add --visual, --pace and --trace; the function gets them as `watch`."""

    @click.option("--visual", is_flag=True, help="Show the canvas at every step.")
    @click.option("--pace", type=click.FloatRange(0, 60), metavar="S", help="With --visual: hold every step S seconds.")
    @click.option(
        "--trace",
        type=click.Path(path_type=Path),
        metavar="FILE.jsonl",
        help="Write every step to this file; dllm trace shows it.",
    )
    @functools.wraps(function)
    def gathered(visual: bool, pace: float | None, trace: Path | None, **given: Any) -> Any:
        if pace is not None and not visual:
            raise UsageError("--pace holds the steps of a view, but there is none", "add --visual")
        return function(watch=Watch(visual, pace or 0.0, trace), **given)

    return gathered
