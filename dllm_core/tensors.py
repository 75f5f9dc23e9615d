"""Named arrays of a checkpoint, read lazily and as float32, whatever they are stored as."""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

BF16 = "BF16"
CHUNK = 1 << 20  # values that are widened at a time: they stay in a cache until they are packed
ALONE = 1 << 18  # values that one thread widens before others have woken up


def widen(raw: npt.NDArray[Any], dtype: str, out: F32 | None = None) -> F32:
    """Stored values -> float32 (a copy). bfloat16 arrives as uint16, the upper half of a float32."""
    if out is None:
        out = np.empty(raw.shape, np.float32)
    if dtype == BF16:
        bits = out.view(np.uint32)
        bits[...] = raw
        bits <<= np.uint32(16)
    else:
        out[...] = raw
    return out


@dataclass(frozen=True)
class Tensor:
    """A stored array, usually memory-mapped and read-only."""

    name: str  # in the checkpoint, for messages
    raw: npt.NDArray[Any]  # float32, float16, or uint16 for bfloat16
    dtype: str  # the stored type: "F32", "F16" or "BF16"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    def rows(self, start: int, stop: int) -> F32:
        """Rows [start, stop) as float32."""
        return widen(self.raw[start:stop], self.dtype)

    def gather(self, ids: npt.NDArray[np.int64]) -> F32:
        """The rows named by `ids` as float32 [len(ids), ...]."""
        return widen(self.raw[ids], self.dtype)

    def array(self) -> F32:
        """The whole array as float32."""
        return widen(self.raw, self.dtype)

    def chunks(self, threads: int = 1) -> Iterator[tuple[int, F32]]:
        """(first row, float32 rows) in order, so that a big matrix never exists twice in float32.

        Up to `threads` threads read and widen the rows of a chunk. What has been read of a memory-mapped file no longer
        counts as memory of this process.
        """
        rows = max(CHUNK // math.prod((*self.shape[1:], 64)), 1) * 64
        with ThreadPoolExecutor(threads) as pool:  # starts none before there is work for it
            for at in range(0, self.shape[0], rows):
                raw = self.raw[at : at + rows]
                out = np.empty(raw.shape, np.float32)
                step = -(-len(raw) // threads) if raw.size > ALONE else len(raw)
                parts = [(raw[a : a + step], self.dtype, out[a : a + step]) for a in range(0, len(raw), step)]
                deque((pool.map if len(parts) > 1 else map)(lambda part: widen(*part), parts), maxlen=0)
                yield at, out
                forget(raw)


def huge_pages(mapped: np.memmap) -> np.memmap:
    """Ask that what is read from the disk is read and mapped in huge pages, where the system has them for files."""
    with suppress(AttributeError, OSError):
        mapped._mmap.madvise(mmap.MADV_HUGEPAGE)  # type: ignore[attr-defined]
    return mapped


def forget(raw: npt.NDArray[Any]) -> None:
    """Unmap the pages of a part of a file; the system keeps them cached, and maps them again when they are read."""
    _advise(raw, "MADV_DONTNEED")


def scattered(raw: npt.NDArray[Any]) -> None:
    """Say that of this part of a file single rows are read: else each maps, and counts as, two megabytes."""
    _advise(raw, "MADV_NOHUGEPAGE")


def _advise(raw: npt.NDArray[Any], advice: str) -> None:
    """madvise for the pages of a memory-mapped array; nothing for others, and where the system has no such advice."""
    file = getattr(raw, "_mmap", None)
    if file is None or not hasattr(mmap, advice) or not raw.flags.c_contiguous:
        return
    first = raw.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError):
        file.madvise(getattr(mmap, advice), start, first + raw.nbytes - start)


def from_array(array: npt.ArrayLike, name: str = "array") -> Tensor:
    """A float32 array as a Tensor (tests, random models)."""
    return Tensor(name, np.ascontiguousarray(array, np.float32), "F32")
