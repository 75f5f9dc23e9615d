"""The page of `dllm trace --html`: template, style and script beside this file, and the steps as JSON inside it."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..decoding.options import DecodeOptions

if TYPE_CHECKING:
    from ..trace import Trace, TraceStep

PLACES = re.compile(r"<!-- (title|style|data|script) -->")


def page(trace: Trace, facts: dict[str, Any]) -> str:
    """One HTML document that loads nothing. The texts of tokens reach it as JSON alone, and are shown as text."""
    here = files(__package__)
    parts = {
        "title": html.escape(f"{facts['model']}: {facts['text'].strip()[:60]}"),
        "style": here.joinpath("trace_page.css").read_text(encoding="utf-8"),
        "script": here.joinpath("trace_page.js").read_text(encoding="utf-8"),
        "data": embed(data(trace, facts)),
    }
    template = here.joinpath("trace_page.html").read_text(encoding="utf-8")
    return PLACES.sub(lambda place: parts[place[1]], template)  # one pass: what is put in is never looked at again


def embed(value: Any) -> str:
    """JSON for a script element: ASCII, and without the characters that could end the element or open a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(trace: Trace, facts: dict[str, Any]) -> dict[str, Any]:
    """What the script needs: the first canvas, and of every step only what it changed."""
    canvas, steps = trace.canvas, []
    for step in trace.steps:
        steps.append(_changes(step, canvas, trace.mask_id))
        canvas = step.canvas
    shown = {*trace.canvas, trace.mask_id, *(t for s in trace.steps for t in s.canvas)}
    shown |= {commit.token for step in trace.steps for commit in step.commits}
    header = {key: trace.header.get(key) for key in ("dllm", "model", "backend", "isa", "scheme", "threads", "options")}
    return {
        **header,
        "defaults": asdict(DecodeOptions()),
        "facts": facts,
        "mask": trace.mask_id,
        "ends": trace.header["end_ids"],
        "texts": {token: trace.texts[token] for token in sorted(shown) if token in trace.texts},
        "canvas": trace.canvas,
        "steps": steps,
    }


def _changes(step: TraceStep, before: list[int], mask: int) -> dict[str, Any]:
    """`r`: positions taken back, `c`: [position, token, confidence] committed, `f`: [position, token] of what else
    changed, such as the masks behind an end token. Applied in this order they make the step's canvas."""
    after = list(before)
    for position in step.revoked:
        after[position] = mask
    for commit in step.commits:
        after[commit.position] = commit.token
    rest = [[p, t] for p, (t, now) in enumerate(zip(step.canvas, after, strict=True)) if t != now]
    return {
        "b": step.block,
        "c": [[c.position, c.token, c.confidence] for c in step.commits],
        "r": step.revoked,
        "f": rest,
        "n": step.rows_run,
        "t": step.ms,
        "e": step.finished,
    }
