"""One safetensors file: the header is checked in full when it is opened, the data is mapped when it is used.

Layout (huggingface/safetensors, "Format"): 8 bytes little-endian header length, JSON header
{name: {dtype, shape, data_offsets: [begin, end)}}, then the data; offsets count from the end of the header
and cover the data without gap or overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError, UnsupportedError, quote
from ..tensors import Tensor, huge_pages
from .files import parse_object, require_file

HEADER_LIMIT = 100_000_000  # the format's own limit
AGAIN = "the file is damaged: download or convert it again"

# Bytes per element of the stored types whose size is a whole number of bytes.
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
# Types that a model can be built from; bfloat16 is mapped as uint16, see `dllm_core.tensors.widen`.
READABLE = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True)
class Entry:
    """One tensor of the header: `start` and `stop` are bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Shard:
    """A checked safetensors file. `entries` is the header by name, `metadata` its texts; no data has been read."""

    def __init__(self, path: Path) -> None:
        require_file(path, "download the missing file again")
        self.path = path
        self.entries, self.metadata = _read_header(path)
        self._bytes: npt.NDArray[np.uint8] | None = None
        _second_opinion(path)

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`, memory-mapped; UnsupportedError for a stored type that is not F32, F16 or BF16."""
        entry = self.entries[name]
        if entry.dtype not in READABLE:
            raise UnsupportedError(
                f"{self.path}: tensor {quote(name)} has dtype {entry.dtype}",
                f"convert the checkpoint to one of {', '.join(READABLE)}",
            )
        return Tensor(name, self._map(entry).view(READABLE[entry.dtype]).reshape(entry.shape), entry.dtype)

    def array(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The bytes of the tensor `name` where they are mapped, read-only, as an array of `dtype` in its shape."""
        entry = self.entries[name]
        return self._map(entry).view(dtype).reshape(entry.shape)

    def _map(self, entry: Entry) -> npt.NDArray[np.uint8]:
        if self._bytes is None:
            try:
                self._bytes = huge_pages(np.memmap(self.path, np.uint8, mode="r"))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"cannot map {self.path}: {error}", AGAIN) from None
        if self._bytes.size < entry.stop:
            raise CheckpointError(f"{self.path} shrank to {self._bytes.size} bytes since it was opened", AGAIN)
        return self._bytes[entry.start : entry.stop]


def _read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if size < 8:
                raise CheckpointError(f"{path} is {'empty' if not size else f'only {size} bytes long'}", AGAIN)
            if length > HEADER_LIMIT:
                raise CheckpointError(
                    f"{path} announces a header of {length} bytes, more than the {HEADER_LIMIT} allowed",
                    "it is no safetensors file, or damaged: download or convert it again",
                )
            if 8 + length > size:
                raise CheckpointError(
                    f"{path} announces a header of {length} bytes but is truncated at {size} bytes", AGAIN
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"the header of {path} is not UTF-8: bad byte at {error.start}", AGAIN) from None
    header = parse_object(text, f"the header of {path}")
    metadata = header.pop("__metadata__", {})
    _check_metadata(metadata, path)
    base = 8 + length
    entries = {name: _entry(name, value, base, path) for name, value in header.items()}
    _check_cover(list(entries.values()), base, size, path)
    return entries, metadata


def _check_metadata(value: Any, path: Path) -> None:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise CheckpointError(f"{path}: __metadata__ is {quote(value)}, not text by name", AGAIN)


def _entry(name: str, value: Any, base: int, path: Path) -> Entry:
    """Check one header entry by itself."""
    where = f"{path}: tensor {quote(name)}"
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is described by {quote(value)}, not by an object", AGAIN)
    dtype: Any = value.get("dtype")
    shape: Any = value.get("shape")
    offsets: Any = value.get("data_offsets")
    if not isinstance(dtype, str):
        raise CheckpointError(f"{where} has dtype {quote(dtype)}, not a name", AGAIN)
    if dtype not in ITEM_BYTES:
        raise UnsupportedError(
            f"{where} has the unknown dtype {quote(dtype)}", f"convert the checkpoint to one of {', '.join(READABLE)}"
        )
    if not _whole_numbers(shape) or len(shape) > 32:
        raise CheckpointError(f"{where} has shape {quote(shape)}, not a list of whole numbers", AGAIN)
    if math.prod(max(d, 1) for d in shape) >= 2**60:  # beyond any address, even where a zero makes the size zero
        raise CheckpointError(f"{where} has shape {quote(shape)}, which is too large", AGAIN)
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has data_offsets {quote(offsets)}, not [begin, end]", AGAIN)
    need = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != need:
        raise CheckpointError(
            f"{where} has data_offsets {quote(offsets)}, but {dtype} {quote(shape)} takes {quote(need)} bytes", AGAIN
        )
    return Entry(name, dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _check_cover(entries: list[Entry], base: int, size: int, path: Path) -> None:
    """The tensors must lie one after the other and fill the file."""
    at, before = base, "the header"
    for entry in sorted(entries, key=lambda e: (e.start, e.stop)):
        where = f"{path}: tensor {quote(entry.name)}"
        if entry.stop > size:
            raise CheckpointError(
                f"{where} ends at byte {entry.stop}, but the file is truncated at {size} bytes", AGAIN
            )
        if entry.start < at:
            raise CheckpointError(
                f"{where} begins at byte {entry.start} and overlaps {before}, which ends at {at}", AGAIN
            )
        if entry.start > at:
            raise CheckpointError(f"{where} begins at byte {entry.start}, leaving a gap after {before} at {at}", AGAIN)
        at, before = entry.stop, f"tensor {quote(entry.name)}"
    if at != size:
        raise CheckpointError(f"{path} has {size - at} bytes after {before} that belong to no tensor", AGAIN)


def _second_opinion(path: Path) -> None:
    """What the safetensors library refuses, we refuse too."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}", AGAIN) from None
