"""Traces: what every step of a decode did, as a file of JSON lines.

The first line is a header: what ran, the canvas before the first step, the texts of its tokens. Then one line a
step; `texts` holds those of tokens that were not seen before. Version 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from . import __version__
from .errors import NotFoundError, TraceError, UsageError, quote

if TYPE_CHECKING:
    from .api import Engine
    from .decoding.loop import Step
    from .decoding.options import DecodeOptions

VERSION = 1


class TraceWriter:
    """Writes the trace of one sequence. Lines go to FILE.part as the steps come; `with` renames it at the end.

    A run that fails or is interrupted leaves FILE.part, if it has any step, and FILE as it was.
    """

    def __init__(self, path: Path) -> None:
        """Opens FILE.part; NotFoundError, UsageError or OSError where that cannot be."""
        if not path.parent.is_dir():
            raise NotFoundError(f"folder {path.parent} of the trace does not exist", f"make it: mkdir -p {path.parent}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file", "name a file for the trace")
        self.path = path.resolve()  # through a link, which stays one
        self.part = self.path.with_name(self.path.name + ".part")
        self.file: TextIO = self.part.open("w", encoding="ascii")
        self.steps = 0
        self.seen: set[int] = set()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.file.close()
        if kind is None:
            self.part.replace(self.path)
        elif not self.steps:
            self.part.unlink(missing_ok=True)

    def begin(self, engine: Engine, options: DecodeOptions, canvas: list[int]) -> None:
        """The header. `canvas` is the sequence before the first step: what is no mask in it is frozen."""
        facts = engine.model.facts
        self.engine = engine
        self._write(
            {
                "trace": VERSION,
                "dllm": __version__,
                "model": engine.name,
                "backend": engine.backend.name,
                "isa": engine.backend.isa,
                "scheme": engine.model.scheme,
                "threads": engine.backend.threads,
                "options": asdict(options),
                "mask_id": facts.mask_id,
                "end_ids": [t for t in (facts.eos_id, facts.eot_id) if t is not None],
                "canvas": canvas,
                "texts": self._texts({*canvas, facts.mask_id, facts.eos_id}),
            }
        )

    def step(self, step: Step) -> None:
        """One line for sequence 0 of a step."""
        canvas = step.canvas[0].tolist()
        mine = [i for i, s in enumerate(step.sequence.tolist()) if s == 0]
        columns = (step.position.tolist(), step.token.tolist(), step.confidence.tolist())
        commits = [(columns[0][i], columns[1][i], columns[2][i]) for i in mine]
        self._write(
            {
                "index": step.index,
                "block": step.block,
                "canvas": canvas,
                "commits": [{"position": p, "token": t, "confidence": _plain(c)} for p, t, c in commits],
                "revoked": step.revoked[0].tolist(),
                "rows_run": step.rows_run,
                "ms": round(1e3 * step.seconds, 3),
                "finished": step.finished[0],
                "texts": self._texts({*canvas, *(t for _, t, _ in commits)}),
            }
        )
        self.steps += 1

    def _texts(self, ids: Iterable[int]) -> dict[int, str]:
        new = sorted(set(ids) - self.seen)
        self.seen.update(new)
        tokenizer = self.engine.tokenizer
        return {} if tokenizer is None else {i: tokenizer.token_text(i) for i in new}

    def _write(self, fields: dict[str, Any]) -> None:
        self.file.write(json.dumps(fields, allow_nan=False, separators=(",", ":")) + "\n")
        self.file.flush()


def _plain(confidence: float) -> float | None:
    """Six digits; JSON knows neither infinity nor NaN."""
    return float(f"{confidence:.6g}") if math.isfinite(confidence) else None


# ---- reading ----


@dataclass(frozen=True)
class Commit:
    position: int
    token: int
    confidence: float | None  # None where it was not finite


@dataclass(frozen=True)
class TraceStep:
    """One step as it stands in the file."""

    index: int
    block: int
    canvas: list[int]
    commits: list[Commit]
    revoked: list[int]
    rows_run: int
    ms: float
    finished: str | None


@dataclass(frozen=True)
class Trace:
    """A trace file. `texts` has the text of every token that the file knows one for."""

    header: dict[str, Any]
    steps: list[TraceStep]
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def canvas(self) -> list[int]:
        """Before the first step."""
        return self.header["canvas"]

    @property
    def mask_id(self) -> int:
        return self.header["mask_id"]

    def text(self, token: int) -> str:
        return self.texts.get(token, f"{token} ")


def read_trace(path: Path) -> Trace:
    """Read a trace; NotFoundError without the file, TraceError that names the line where it is damaged."""
    if not path.exists():
        raise NotFoundError(f"there is no file {path}", "dllm run --trace FILE writes one")
    if not path.is_file():
        raise UsageError(f"{path} is no regular file", "give the file that --trace wrote")
    steps: list[TraceStep] = []
    with path.open("rb") as file:
        header, texts = _header(path, file.readline())
        for number, line in enumerate(file, 2):
            try:
                fields = _object(line)
                steps.append(_step(fields, header, len(steps)))
                texts |= _read_texts(fields)
            except (ValueError, KeyError, RecursionError) as error:
                raise TraceError(
                    f"{path} line {number} is no step: {_reason(error)}", "the lines before it may be whole"
                ) from None
    return Trace(header, steps, texts)


def _header(path: Path, line: bytes) -> tuple[dict[str, Any], dict[int, str]]:
    try:
        header = _object(line)
        version = header["trace"]
    except (ValueError, KeyError, RecursionError):
        raise TraceError(
            f"{path} is no trace: its first line is no header", "dllm run --trace FILE writes one"
        ) from None
    if version != VERSION:
        raise TraceError(f"{path} is a trace of version {quote(version)}, this dllm reads {VERSION}")
    try:
        _ids(header["canvas"])
        _ids(header["end_ids"])
        _ids([header["mask_id"]])
        for key, kind in (("options", dict), ("model", str), ("backend", str), ("scheme", str)):
            _need(isinstance(header[key], kind), key)
        return header, _read_texts(header)
    except (ValueError, KeyError) as error:
        raise TraceError(f"{path} line 1 is no header: {_reason(error)}") from None


def _step(fields: dict[str, Any], header: dict[str, Any], index: int) -> TraceStep:
    canvas, revoked = _ids(fields["canvas"]), _ids(fields["revoked"])
    length = len(header["canvas"])
    _need(len(canvas) == length, f"canvas of {len(canvas)} tokens, not {length}")
    _need(isinstance(fields["commits"], list), "commits")
    commits = [_commit(entry) for entry in fields["commits"]]
    for position in [*revoked, *(c.position for c in commits)]:
        _need(position < length, f"position {position} of {length}")
    _need(fields["index"] == index, f"index {quote(fields['index'])} where {index} is due")
    _ids([fields["rows_run"], fields["block"]])
    _need(_number(fields["ms"]) and fields["ms"] >= 0, "ms")
    _need(fields["finished"] is None or isinstance(fields["finished"], str), "finished")
    return TraceStep(
        index, fields["block"], canvas, commits, revoked, fields["rows_run"], fields["ms"], fields["finished"]
    )


def _commit(entry: Any) -> Commit:
    _need(isinstance(entry, dict), "commits")
    position, token = _ids([entry["position"], entry["token"]])
    sure = entry["confidence"]
    _need(sure is None or _number(sure), "confidence")
    return Commit(position, token, sure)


def _object(line: bytes) -> dict[str, Any]:
    found = json.loads(line.decode("utf-8"))
    _need(isinstance(found, dict), "not an object")
    return found


def _ids(value: Any) -> list[int]:
    """A list of whole numbers from 0."""
    good = isinstance(value, list) and all(type(i) is int and 0 <= i < 2**53 for i in value)
    _need(good, f"{quote(value)} where whole numbers are due")
    return value


def _read_texts(fields: dict[str, Any]) -> dict[int, str]:
    texts = fields.get("texts", {})
    good = isinstance(texts, dict) and all(k.isascii() and k.isdigit() and isinstance(v, str) for k, v in texts.items())
    _need(good, "texts")
    return {int(key): text for key, text in texts.items()}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _need(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "not JSON"
    return str(error)
