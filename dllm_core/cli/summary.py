"""The report of `dllm run --verbose`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .terminal import settings

if TYPE_CHECKING:
    from ..api import Engine, Generation

# what the backend's clock calls the kinds of work, in the order of a pass
KINDS = {"gemm": "GEMM", "attention": "attention", "head": "head", "sampling": "sampling", "other": "other"}


def print_summary(answer: Generation, engine: Engine) -> None:
    """Facts of one answer, aligned, on stderr."""
    for name, value in summary(answer, engine):
        click.echo(f"{click.style(f'{name:<10}', dim=True)} {value}", err=True, color=settings().colored(sys.stderr))


def summary(answer: Generation, engine: Engine) -> list[tuple[str, str]]:
    """(name, value) of every line."""
    from ..api import model_path
    from ..plugins import load_registry

    seconds, step = max(answer.generate_s, 1e-9), max(answer.ms_per_step, 1e-9)
    split = {KINDS.get(k, k): ms for k, ms in sorted(answer.ms_by_kind.items(), key=lambda item: _order(item[0]))}
    split["other"] = max(step - sum(ms for kind, ms in split.items() if kind != "other"), 0.0)  # what no kind covers
    useful, canvas = answer.useful_tokens, answer.canvas_tokens
    threads = f"{answer.threads} thread{'s' if answer.threads != 1 else ''}"
    lines = [
        ("model", f"{engine.name} = {model_path(engine.name, load_registry())}"),
        ("backend", f"{answer.backend}, {answer.isa}, {answer.scheme}, {threads}"),
        ("load", f"{answer.load_s:.2f} s"),
        ("generate", f"{answer.generate_s:.2f} s, {answer.forward_passes} forward passes, {step:.2f} ms a step"),
        ("a step", ", ".join(f"{k} {ms:.2f}" for k, ms in split.items()) + " ms"),
        ("tokens", f"{useful} useful of {canvas} on the canvas, {answer.prompt_tokens} in the prompt"),
        ("speed", f"{useful / seconds:.1f} useful tokens/s, {canvas / seconds:.1f} canvas tokens/s"),
        ("finished", f"{answer.finish_reason}, {answer.masks_left} masks left, seed {answer.seed}"),
        ("memory", f"{_memory(answer, engine)}; {answer.peak_rss_bytes / 2**20:.0f} MiB at the peak"),
    ]
    return [(name, value) for name, value in lines if value]


def _memory(answer: Generation, engine: Engine) -> str:
    from ..memory import footprint
    from .inspection import size

    found = footprint(engine.model, len(answer.tokens))
    return ", ".join(f"{what} {size(count)}" for what, count in found.items() if count)


def _order(kind: str) -> int:
    return list(KINDS).index(kind) if kind in KINDS else len(KINDS)
