"""`dllm trace`: what happened in a decode, as a few lines or as a page to watch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import NotFoundError, UsageError, quote
from .options import json_option
from .output import write_json, write_table
from .terminal import settings

if TYPE_CHECKING:
    from ..trace import Trace


@click.command(short_help="Look at the steps of a decode.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="OUT.html", help="Write one page to play, pause and step."
)
@json_option
def command(file: Path, html: Path | None, as_json: bool) -> None:
    """Sum up FILE, a trace that --trace wrote; with --html make a page of it that needs no network.

    \b
      dllm run "Sort 41 7 93 22" --strategy careful --trace sort.jsonl
      dllm trace sort.jsonl --html sort.html

    The trace of a run that did not end is in FILE.part.
    """
    if html is not None:
        _check_target(html, file)
    from ..trace import read_trace

    trace = read_trace(file)
    facts = summarise(trace)
    if html is not None:
        from .trace_page import page

        _write(html, page(trace, facts))
        if not as_json:
            settings().note(f"{html}: {facts['steps']} steps, open it in a browser")
    if as_json:
        write_json({"file": str(file), "html": None if html is None else str(html), **facts})
    elif html is None:
        write_table(["", ""], lines(facts), header=False)


def summarise(trace: Trace) -> dict[str, Any]:
    """The figures of a trace."""
    steps, header = trace.steps, trace.header
    last = steps[-1].canvas if steps else trace.canvas
    counts = [len(step.commits) for step in steps]
    ms = [step.ms for step in steps]
    masks = trace.canvas.count(trace.mask_id)
    return {
        "model": header["model"],
        "backend": header["backend"],
        "scheme": header["scheme"],
        "steps": len(steps),
        "masks": masks,
        "masks_left": last.count(trace.mask_id),
        "frozen": len(trace.canvas) - masks,
        "commits": sum(counts),
        "commits_per_step": dict(sorted(Counter(counts).items())),
        "revoked": sum(len(step.revoked) for step in steps),
        "steps_with_revokes": sum(bool(step.revoked) for step in steps),
        "rows_run": sum(step.rows_run for step in steps),
        "ms": round(sum(ms), 3),
        "ms_fastest": min(ms, default=0.0),
        "ms_slowest": max(ms, default=0.0),
        "finished": steps[-1].finished if steps else None,
        "text": written(trace, last),
    }


def written(trace: Trace, canvas: list[int]) -> str:
    """The texts of the tokens in place of masks, up to the first end token, joined."""
    found = []
    for before, token in zip(trace.canvas, canvas, strict=True):
        if before == trace.mask_id:
            if token in trace.header["end_ids"]:
                break
            found.append("[MASK]" if token == trace.mask_id else trace.text(token))
    return "".join(found)


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of every line."""
    steps, ms = facts["steps"], facts["ms"]
    spread = ", ".join(f"{times} of {count}" for count, times in facts["commits_per_step"].items())
    mean = f"{facts['commits'] / steps:.2f} a step" if steps else "no step"
    full = steps * (facts["masks"] + facts["frozen"])
    share = f", {100 * facts['rows_run'] / full:.0f} % of all" if full else ""
    speed = f"{ms / steps:.2f} a step, {facts['ms_fastest']:.2f} to {facts['ms_slowest']:.2f}" if steps else "none"
    return [
        ("model", f"{facts['model']}, {facts['backend']}, {facts['scheme']}"),
        ("canvas", f"{facts['masks']} masks and {facts['frozen']} frozen tokens"),
        ("steps", f"{steps}, ended by: {facts['finished'] or 'the last step'}, {facts['masks_left']} masks left"),
        ("commits", f"{facts['commits']}, {mean}" + (f" (steps: {spread})" if steps else "")),
        ("revoked", f"{facts['revoked']} in {facts['steps_with_revokes']} steps" if facts["revoked"] else "none"),
        ("rows", f"{facts['rows_run']}{share}"),
        ("ms", f"{ms:.1f}, {speed}"),
        ("text", quote(facts["text"])),
    ]


def _check_target(path: Path, trace: Path) -> None:
    if not path.parent.is_dir():
        raise NotFoundError(f"folder {path.parent} of --html does not exist", f"make it: mkdir -p {path.parent}")
    if path.exists() and not path.is_file():
        raise UsageError(f"--html {path} is no regular file", "name a file for the page")
    if path.exists() and trace.exists() and path.samefile(trace):
        raise UsageError(f"--html {path} is the trace itself", "name another file for the page")


def _write(path: Path, text: str) -> None:
    """Under a temporary name beside `path`, then renamed: nobody ever sees half of it."""
    path = path.resolve()
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
