"""Where the numbers of a packed weight lie: the description that packed model files and backends agree on.

Every layout of this project is panels: `columns` outputs side by side, cut along the inputs into steps of `depth`.
That is enough to read a weight that another backend or another instruction set has packed, without its code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UnsupportedError, quote
from .quant import Scheme, get_scheme, round_bf16
from .tensors import BF16, forget, widen

Array = npt.NDArray[Any]
LINE = 64  # bytes of a cache line: where every array of a packed weight begins
HUGE_PAGE = 1 << 21
CHUNK = 1024  # outputs that are rearranged at a time
WHOLE = 4  # depth 0: the inputs of one output lie together, their number rounded up to this


@dataclass(frozen=True)
class Layout:
    """One packed layout. A weight [n, k] with G groups of inputs has these arrays, each beginning at a multiple of 64:

    codes    [panel][step][columns][depth], for int8 schemes: int8, or uint8 code + `zero` where `zero` is set
             [panel][step][columns][depth / 2], for int4 schemes: uint8, whose byte i has input i + `zero` of the
             step in its lower half and input i + depth / 2 in its upper half
    weights  [panel][step][columns][depth], for schemes without codes: float32, or the upper half of it as uint16
    scales   [panel][G][columns] float32, for schemes with codes
    bias     [panel][columns] float32, where the projection has one

    Scales beyond n are zero; so are codes and weights beyond n or k where `write` made them, and nothing may depend
    on them. Axes of one element at the end are left out of shapes: row-major is 1 x 1 panels.
    """

    backend: str
    version: int  # raised when the meaning changes in a way that the other fields do not show
    isa: str
    scheme: str
    columns: int
    depth: int  # 0: all inputs, rounded up to `WHOLE`
    zero: int = 0

    def __str__(self) -> str:
        return f"{self.backend}/{self.version}/{self.isa}/{self.scheme}/{self.columns}x{self.depth}+{self.zero}"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that `str` wrote; UnsupportedError for what this version does not know."""
        found = re.fullmatch(r"([\w.-]+)/(\d{1,6})/([\w.-]+)/([\w.-]+)/(\d{1,6})x(\d{1,6})\+(0|8|128)", text, re.ASCII)
        if not found or int(found[5]) < 1:
            raise UnsupportedError(f"unknown layout {quote(text)} of packed weights", "convert the source model again")
        backend, version, isa, scheme, columns, depth, zero = found.groups()
        layout = cls(backend, int(version), isa, scheme, int(columns), int(depth), int(zero))
        zeros = {4: (8,), 8: (0, 128)}.get(layout.how.bits, (0,))
        if layout.zero not in zeros or (layout.how.bits == 4 and layout.depth % 2):
            raise UnsupportedError(f"unknown layout {quote(text)} of packed weights", "convert the source model again")
        return layout

    @property
    def how(self) -> Scheme:
        """The scheme."""
        return get_scheme(self.scheme)

    def arrays(self, n: int, k: int, bias: bool) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of every array of a weight [n, k]."""
        panels, (steps, depth) = -(-n // self.columns), self.steps(k)
        stored = depth // 2 if self.how.bits == 4 else depth
        body = _trim(panels, steps, self.columns, stored)
        found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        if self.how.quantised:
            found["codes"] = np.dtype(np.uint8 if self.zero else np.int8), body
            found["scales"] = np.dtype(np.float32), _trim(panels, len(self.how.groups(k)), self.columns)
        else:
            found["weights"] = np.dtype(np.float32 if self.how.bits == 32 else np.uint16), body
        if bias:
            found["bias"] = np.dtype(np.float32), _trim(panels, self.columns)
        return found

    def read(self, arrays: Mapping[str, Array], n: int, k: int) -> dict[str, Array]:
        """Row-major copies: codes int8 [n, k] and scales [n, G], or float32 weights [n, k]; bias [n]."""
        steps, _ = self.steps(k)
        found: dict[str, Array] = {}
        panels: Array
        for name, array in arrays.items():
            if name == "bias":
                found[name] = array.reshape(-1)[:n].copy()
            elif name == "scales":
                panels = array.reshape(-(-n // self.columns), -1, self.columns)
                found[name] = np.ascontiguousarray(panels.transpose(0, 2, 1)).reshape(-1, panels.shape[1])[:n]
            else:
                panels = self._load(array.reshape(-(-n // self.columns), steps, self.columns, -1))
                rows = panels.transpose(0, 2, 1, 3).reshape(-(-n // self.columns) * self.columns, -1)
                found[name] = np.ascontiguousarray(rows[:n, :k])
        return found

    def write(self, rows: Mapping[str, Array], n: int, k: int) -> dict[str, Array]:
        """The arrays of this layout from what `read` gives."""
        steps, depth = self.steps(k)
        found: dict[str, Array] = {}
        for name, (dtype, shape) in self.arrays(n, k, "bias" in rows).items():
            source, out = rows[name].reshape(n, -1), aligned(shape, dtype)
            tile = (source.shape[1], 1) if name in ("scales", "bias") else (steps, depth)
            padded = np.zeros((shape[0] * self.columns, tile[0] * tile[1]), source.dtype)
            padded[:n, : source.shape[1]] = source
            panels: Array = padded.reshape(-1, self.columns, *tile).transpose(0, 2, 1, 3)
            panels = panels if name in ("scales", "bias") else self._store(panels)
            out.reshape(panels.shape)[...] = panels
            found[name] = out
        return found

    def _store(self, values: Array) -> Array:
        """Codes or weights [..., depth] as they are stored."""
        if not self.how.quantised:
            return values if self.how.bits == 32 else round_bf16(values)
        if self.how.bits == 8:
            return _flip(values, self.zero)
        low, high = np.split(values.view(np.uint8) + np.uint8(self.zero), 2, axis=-1)
        return low | high << np.uint8(4)

    def _load(self, stored: Array) -> Array:
        """The inverse of `_store`: int8 codes or float32 weights [..., depth]."""
        if not self.how.quantised:
            return stored if self.how.bits == 32 else widen(stored, BF16)
        if self.how.bits == 8:
            return _flip(stored, self.zero).view(np.int8)
        halves = np.concatenate([stored & np.uint8(15), stored >> np.uint8(4)], axis=-1)
        return (halves - np.uint8(self.zero)).view(np.int8)

    def steps(self, k: int) -> tuple[int, int]:
        """Number of steps along k inputs, and inputs a step."""
        depth = self.depth or -(-k // WHOLE) * WHOLE
        return -(-k // depth), depth


@dataclass(frozen=True)
class Packed:
    """A packed weight [n, k] as a file or a backend describes it."""

    layout: Layout
    n: int
    k: int


def rearrange(arrays: Mapping[str, Array], source: Layout, target: Layout, n: int, k: int) -> dict[str, Array]:
    """The arrays of a weight [n, k] in another layout, moved in pieces: a large weight exists twice, never thrice."""
    piece = math.lcm(source.columns, target.columns)
    piece *= max(1, CHUNK // piece)
    described = target.arrays(n, k, "bias" in arrays).items()
    out = {name: aligned(shape, dtype) for name, (dtype, shape) in described}
    for at in range(0, n, piece):
        count = min(piece, n - at)
        first, last = at // source.columns, -(-(at + count) // source.columns)
        part = {name: array[first:last] for name, array in arrays.items()}
        for name, moved in target.write(source.read(part, count, k), count, k).items():
            out[name][at // target.columns :][: len(moved)] = moved
        for array in part.values():
            forget(array)
    return out


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """An uninitialised array at a multiple of 64 bytes; large ones begin where a huge page can."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    alignment = HUGE_PAGE if size >= 2 * HUGE_PAGE else LINE
    block = np.empty(size + alignment, np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + size].view(dtype).reshape(shape)


def lines(array: Array) -> Array:
    """`array` itself where it begins at a multiple of 64, else a copy that does."""
    if array.ctypes.data % LINE == 0 and array.flags.c_contiguous:
        return array
    out = aligned(array.shape, array.dtype)
    out[...] = array
    return out


def packs(backend: Any) -> bool:
    """Whether a backend's `layout`, `pack` and `unpack_file` belong to its `prepare_linear`, and are not inherited
    from a class with other handles."""

    def owner(method: str) -> type:
        return next(c for c in type(backend).__mro__ if method in vars(c))

    return issubclass(owner("unpack_file"), owner("prepare_linear"))


def _flip(codes: Array, zero: int) -> Array:
    """int8 codes <-> stored bytes: adding 128 modulo 256 is flipping the top bit, in both directions."""
    return np.bitwise_xor(codes.view(np.uint8), np.uint8(zero)) if zero else codes


def _trim(*shape: int) -> tuple[int, ...]:
    """`shape` without axes of one element at the end; the first stays."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape
