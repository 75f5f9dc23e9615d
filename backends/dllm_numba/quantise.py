"""Dynamic quantisation of activations, `dllm_core.quant.quantise_rows` bit for bit, one pass over memory per row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import prange

from dllm_core.backend import F32

from .jit import compiled, compiled_parallel, thread_count

# A float32 without its sign bit orders like the integer of the same bits, with infinity and NaN above all others:
# the largest magnitude is an integer maximum, which the compiler may reorder and turn into vector code.
MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)
TINY = np.int32(np.float32(2.0**-100).view(np.int32))
# Below this many values one thread is done before a second one has woken up.
SERIAL = 2**18


class Codes(NamedTuple):
    """Quantised activations, as the kernels read them."""

    codes: npt.NDArray[np.int8]  # [rows rounded up to 4, stride]; what lies behind K meets weights that are zero
    scale: F32  # [rows]
    offsets: npt.NDArray[np.int32]  # [G, rows rounded up to 4]: -128 * sum of the codes of each group


def quantise(x: F32, group: int, threads: int) -> Codes:
    """Quantise x [R, K] per row; `group` is the number of inputs per weight scale."""
    rows, k = x.shape
    padded = -(-rows // 4) * 4
    # An odd number of cache lines per row: rows a power of two apart would compete for the same sets of the cache.
    stride = (-(-k // 64) | 1) * 64
    q = Codes(
        np.empty((padded, stride), np.int8), np.empty(rows, np.float32), np.empty((-(-k // group), padded), np.int32)
    )
    arguments = (x, x.view(np.int32), group, *q)
    if threads == 1 or x.size < SERIAL:
        quantise_rows(0, rows, *arguments)
    else:
        with thread_count(threads):
            quantise_parallel(threads, *arguments)
    return q


@compiled
def quantise_rows(first, last, x, bits, group, codes, scale, offsets):
    k = x.shape[1]
    for r in range(first, last):
        row_bits = bits[r]
        largest = np.int32(0)
        for j in range(k):
            largest = max(largest, np.int32(row_bits[j] & MAGNITUDE))  # numba widens int32 unless told
        if TINY <= largest < INFINITY:
            amax = np.int32(largest).view(np.float32)
            scale[r] = amax / np.float32(127)
            inverse = np.float32(127) / amax
        else:  # nothing to see or a fault: codes are zero, and the scale tells which
            scale[r] = np.float32(0) if largest < TINY else np.float32(np.nan)
            inverse = np.float32(0)
        for g in range(offsets.shape[0]):
            values = x[r, g * group : min((g + 1) * group, k)]
            out = codes[r, g * group : min((g + 1) * group, k)]
            total = np.int32(0)
            if inverse == 0:
                out[:] = 0
            else:
                for j in range(values.size):
                    code = np.int32(np.rint(values[j] * inverse))  # at most 127: |value| <= amax
                    out[j] = np.int8(code)
                    total = np.int32(total + code)
            offsets[g, r] = np.int32(-128) * total


@compiled_parallel
def quantise_parallel(parts, x, bits, group, codes, scale, offsets):
    rows = x.shape[0]
    for part in prange(parts):
        i = np.int64(part)
        quantise_rows(i * rows // parts, (i + 1) * rows // parts, x, bits, group, codes, scale, offsets)
