"""Quantisation as `dllm_core.quant` has it, bit for bit: of activations, one pass over memory per row, and of weights,
written straight into panels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dllm_core import quant
from dllm_core.backend import F32

from .jit import claim, compiled
from .team import Team

# A float32 without its sign bit orders like the integer of the same bits, with infinity and NaN above all others:
# the largest magnitude is an integer maximum, which the compiler may reorder and turn into vector code.
MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)
TINY = np.int32(quant.TINY.view(np.int32))
STEPS = quant.STEPS_4BIT
# Values that one thread quantises before a second one has woken up, and rows that are claimed at a time.
SERIAL = 2**18
PIECE = 4


class Codes(NamedTuple):
    """Quantised activations, as the kernels read them."""

    codes: npt.NDArray[np.int8]  # [rows rounded up to 4, stride], zero from K to the next multiple of 8
    scale: F32  # [rows]
    offsets: npt.NDArray[np.int32]  # [G, rows rounded up to 4]: -zero * sum of the codes of each group


def quantise(x: F32, group: int, zero: int, team: Team) -> Codes:
    """Quantise x [R, K] per row; `group` is the number of inputs per weight scale, `zero` the stored weight for 0."""
    rows, k = x.shape
    padded = -(-rows // 4) * 4
    # An odd number of cache lines per row: rows a power of two apart would compete for the same sets of the cache.
    stride = (-(-k // 64) | 1) * 64
    q = Codes(
        np.empty((padded, stride), np.int8), np.empty(rows, np.float32), np.empty((-(-k // group), padded), np.int32)
    )
    team.run(1 + x.size // SERIAL, quantise_rows, 0, -(-rows // PIECE), x, x.view(np.int32), group, zero, *q)
    return q


@compiled
def find_scale(bits, four):
    """(scale, inverse of it) of values given as int32 bits. Where there is nothing to see or a fault the inverse is 0,
    codes shall be zero, and the scale tells which: 0 or NaN."""
    largest = highest = np.int32(0)
    for j in range(bits.size):
        largest = max(largest, np.int32(bits[j] & MAGNITUDE))  # numba widens int32 unless told
        highest = max(highest, bits[j])  # of the positive values
    if largest < TINY:
        return np.float32(0), np.float32(0)
    if largest >= INFINITY:
        return np.float32(np.nan), np.float32(0)
    amax = np.int32(largest).view(np.float32)
    if not four:
        return amax / np.float32(127), np.float32(127) / amax
    extreme = amax if highest == largest else -amax
    return extreme / -STEPS, -STEPS / extreme


@compiled
def quantise_rows(claims, x, bits, group, zero, codes, scale, offsets):
    rows, k = x.shape
    while True:
        piece = claim(claims)
        if piece >= claims[1]:
            return
        for r in range(piece * PIECE, min((piece + 1) * PIECE, rows)):
            scale[r], inverse = find_scale(bits[r], False)
            codes[r, k : -(-k // 8) * 8] = 0
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
                offsets[g, r] = np.int32(-zero * total)


@compiled
def pack_rows(claims, w, bits, at, four, group, zero, panels, words, scales):
    """Quantise weights w [n, K] and write them as outputs at .. at + n of `panels` and scales [P, G, columns].

    words: the panels as uint32. Panels are claimed, so that no two threads write to one cache line.
    """
    n, k = w.shape
    steps, columns, stored = panels.shape[1:]
    codes = np.full(steps * stored * (2 if four else 1), zero, np.uint8)  # of one output, + zero
    packed = np.empty(steps * stored, np.uint8)  # the same as stored
    low, top = (np.float32(-8), np.float32(7)) if four else (np.float32(-127), np.float32(127))
    while True:
        p = claim(claims)
        if p >= claims[1]:
            return
        for output in range(max(p * columns, at), min((p + 1) * columns, at + n)):
            row, c = output - at, output % columns
            for g in range(scales.shape[1]):
                a, b = g * group, min((g + 1) * group, k)
                scales[p, g, c], inverse = find_scale(bits[row, a:b], four)
                quantise_weights(w[row, a:b], inverse, low, top, zero, codes[a:b])
            if four:
                share_bytes(codes, stored, packed)
            else:
                packed[:] = codes
            if stored == 4:
                row_words = packed.view(np.uint32)
                for s in range(steps):
                    words[(p * steps + s) * columns + c] = row_words[s]
            else:
                for s in range(steps):
                    panels[p, s, c] = packed[s * stored : (s + 1) * stored]


@compiled
def quantise_weights(values, inverse, low, top, zero, out):
    if inverse == 0:
        out[:] = zero
    else:
        for j in range(values.size):
            code = min(max(np.rint(values[j] * inverse), low), top)
            out[j] = np.uint8(np.int32(np.int32(code) + np.int32(zero)))


@compiled
def share_bytes(codes, stored, packed):
    """Two codes per byte: of each step, the first half below, the second half above."""
    for s in range(packed.size // stored):
        first, second = codes[2 * s * stored :], codes[(2 * s + 1) * stored :]
        for i in range(stored):
            packed[s * stored + i] = first[i] | second[i] << 4
