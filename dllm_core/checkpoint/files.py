"""Reading small files of a model folder: sizes, encodings and JSON are checked, faults become one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, NotFoundError, quote

# Far above any published config, index or template, far below what would exhaust memory.
TEXT_LIMIT = 64 << 20


def require_file(path: Path, hint: str | None = None) -> None:
    """NotFoundError unless `path` is a regular file (links are followed: the hub's cache consists of them)."""
    if path.is_file():
        return
    if path.is_symlink():
        raise NotFoundError(f"{path} is a link to nothing", hint or "download the model again")
    if path.exists():
        raise CheckpointError(f"{path} is no regular file", hint)
    raise NotFoundError(f"{path} does not exist", hint)


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The whole file as UTF-8 text."""
    require_file(path)
    try:
        size = path.stat().st_size
        if size > limit:
            raise CheckpointError(f"{path} has {size} bytes, more than the {limit} allowed", "is it the right file?")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: bad byte at {error.start}", "download the file again") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`."""
    return parse_object(read_text(path), str(path))


def parse_object(text: str, where: str) -> dict[str, Any]:
    """JSON text -> object; CheckpointError for anything else, for NaN and for a key given twice."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        raise CheckpointError(f"{where} is not valid JSON: {error.msg} at {at}", "download the file again") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(f"{where} is not valid JSON: {reason}", "download the file again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds {quote(value)}, not a JSON object", "download the file again")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"{quote(key)} appears twice")
        seen[key] = value
    return seen


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
