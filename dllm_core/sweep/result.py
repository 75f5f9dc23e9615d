"""The result file of a sweep: what ran where, and one measured point for every setting that is finished."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import NotFoundError, UsageError, quote

SCHEMA = 1
MACHINE = (
    "cpu",
    "threads",
    "backend",
    "isa",
    "scheme",
    "model",
    "weights",
    "together",
    "dllm",
)  # one file, one machine


@dataclass(frozen=True)
class Point:
    """One setting, measured. Means are over prompts, shares from 0 to 1, times in seconds unless named otherwise."""

    name: str
    group: str
    options: dict[str, Any]  # every field of DecodeOptions
    prompts: int
    correct: int
    accuracy: float
    tasks: dict[str, dict[str, Any]]  # kind of task -> prompts, correct, forward_passes (mean)
    marks: str  # "1" or "0" for every prompt, in the order of the task file
    forward_passes: float  # mean; with several prompts together, those of the whole batch
    rows_run: float  # mean
    seconds: float  # decoding all prompts
    ms_per_prompt: float
    ms_per_pass: float
    useful_tokens_per_s: float  # before the first end token
    canvas_tokens_per_s: float
    useful_length: float  # mean
    ended_by_eos: float  # share of answers with an end token
    with_masks_left: float  # share
    finish_reasons: dict[str, int]
    peak_rss_bytes: int  # of the process so far


@dataclass(frozen=True)
class Sweep:
    """A whole file. `tasks` and `grid` carry the digests by which a later run knows that it may go on."""

    tasks: dict[str, Any]  # source, digest, prompts, kinds
    grid: dict[str, Any]  # name, digest, settings (names, in order)
    environment: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return len(self.points) == len(self.grid["settings"])

    def point(self, name: str) -> Point | None:
        return next((p for p in self.points if p.name == name), None)


def save(sweep: Sweep, path: Path) -> None:
    """Replace the file in one step: an interruption leaves the old one."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(_text(sweep))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise NotFoundError(f"cannot write {quote(str(path))}: {error.strerror}") from error


def _text(sweep: Sweep) -> str:
    """JSON with a line for every point, so that a changed point is a changed line."""
    head = {"schema": SCHEMA, "kind": "sweep", **asdict(sweep)}
    points = ",\n".join(json.dumps(point) for point in head.pop("points"))
    lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    return "\n".join(["{", *lines, '"points": [', *([points] if points else []), "]", "}"]) + "\n"


def read(path: Path) -> Sweep:
    """The sweep in a file; UsageError if it holds something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(f"result file {quote(str(path))}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _no_result(path) from error
    try:
        if data["kind"] != "sweep" or data["schema"] != SCHEMA or not isinstance(data["grid"]["settings"], list):
            raise _no_result(path)
        points = [Point(**{f.name: p[f.name] for f in fields(Point)}) for p in data["points"]]
        return Sweep(data["tasks"], data["grid"], data["environment"], data["notes"], points)
    except (KeyError, TypeError) as error:
        raise _no_result(path) from error


def _no_result(path: Path) -> UsageError:
    return UsageError(f"{quote(str(path))} is no result of a sweep", "give another file: --out RESULT.json")


def resumed(fresh: Sweep, path: Path) -> Sweep:
    """What the file holds already, if it was made by the same grid, tasks and machine; else UsageError."""
    if not path.exists():
        return fresh
    old = read(path)
    way_out = "give another --out, or remove the file to begin again"
    for what in ("tasks", "grid"):
        if getattr(old, what).get("digest") != getattr(fresh, what)["digest"]:
            raise UsageError(f"{quote(str(path))} was begun with other {what}: it cannot go on", way_out)
    for key in MACHINE:
        was, now = old.environment.get(key), fresh.environment[key]
        if was != now:
            raise UsageError(
                f"{quote(str(path))} was begun with {key} {quote(was)}, this run has {quote(now)}", way_out
            )
    return old
