"""What each quantisation scheme means, in numpy: rounding, scales, groups. Layout-free.

Backends may store codes in any order and fuse at will, but codes, scales and int32 accumulators must equal
these bit for bit. Scheme names follow XNNPACK: `qd8-f32-qc8w` reads "activations quantised dynamically to
int8, float32 out, weights int8 per channel"; `qb8w` has one scale per block (group) of 128 inputs, `qb4w` the
same with weights of four bits. `bf16` rounds weights and activations to bfloat16 and sums products in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UnsupportedError

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]

QMAX = 127
# A four-bit code is the weight in steps of 1 / 8.4 of its group's extreme value, which gets code -8. Codes are
# symmetric around 0 but for that one, and the extreme loses 5 % so that all others have finer steps. In normal
# and in trained weights this errs as little as a zero point per group does (docs/quantisation.md).
STEPS_4BIT = np.float32(8.4)
# Rows whose largest magnitude is below this quantise to zero: 127 / amax would overflow float32.
TINY = np.float32(2.0**-100)


@dataclass(frozen=True)
class Scheme:
    """One quantisation scheme. `bits` of a stored weight; `group` is the number of inputs per weight scale, 0 for the
    whole row."""

    name: str
    bits: int
    group: int
    summary: str

    @property
    def quantised(self) -> bool:
        """Whether weights are integer codes with scales, and activations int8 codes."""
        return self.bits <= 8

    def groups(self, k: int) -> list[tuple[int, int]]:
        """The [start, stop) bounds of the weight groups along K inputs; the last one may be shorter."""
        step = self.group or max(k, 1)
        return [(at, min(at + step, k)) for at in range(0, k, step)]


SCHEMES = {
    s.name: s
    for s in (
        Scheme("f32", 32, 0, "float32 weights and activations"),
        Scheme("bf16", 16, 0, "bfloat16 weights and activations, float32 sums"),
        Scheme("qd8-f32-qc8w", 8, 0, "int8 weights per output channel, int8 activations per row"),
        Scheme("qd8-f32-qb8w", 8, 128, "int8 weights per group of 128 inputs, int8 activations per row"),
        Scheme("qd8-f32-qb4w", 4, 128, "int4 weights per group of 128 inputs, int8 activations per row"),
    )
}


def get_scheme(name: str) -> Scheme:
    """The scheme called `name`; UnsupportedError lists the choices."""
    if name not in SCHEMES:
        raise UnsupportedError(f"unknown scheme {name!r}", f"choose one of: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def quantise_rows(x: F32) -> tuple[I8, F32]:
    """Symmetric int8 per row: x[R, K] -> (codes [R, K], scale [R]) with x ~ codes * scale[:, None].

    All arithmetic is float32: amax = max|x|, scale = amax / 127, code = round_half_even(x * (127 / amax)).
    A row with amax < 2**-100 gives codes 0 and scale 0. A row that holds NaN or infinity gives codes 0 and
    scale NaN, so that the fault is seen in the output and not rounded away.
    """
    amax = np.max(np.abs(x), axis=-1, initial=np.float32(0)).astype(np.float32)
    finite = np.isfinite(amax)
    used = finite & (amax >= TINY)
    safe = np.where(used, amax, np.float32(1))
    inverse = np.where(used, np.float32(QMAX) / safe, np.float32(0)).astype(np.float32)
    scale = np.where(used, safe / np.float32(QMAX), np.where(finite, np.float32(0), np.float32(np.nan)))
    clean = x if finite.all() else np.where(finite[..., None], x, np.float32(0))
    codes = np.rint(clean * inverse[..., None])
    return np.clip(codes, -QMAX, QMAX).astype(np.int8), scale.astype(np.float32)


def round_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """The upper half of every float32, rounded half to even: bfloat16 as it is stored. NaN stays NaN (quiet)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def quantise_rows_4bit(x: F32) -> tuple[I8, F32]:
    """Four-bit codes -8..7 per row: x[R, K] -> (codes [R, K], scale [R]) with x ~ codes * scale[:, None].

    All arithmetic is float32. extreme = the value of largest magnitude (the positive one where both signs have
    it), scale = extreme / -8.4 (so scales have either sign), code = round_half_even(x * (-8.4 / extreme)), at most
    7 and at least -8. Tiny and faulty rows as in `quantise_rows`.
    """
    high = np.max(x, axis=-1, initial=np.float32(0)).astype(np.float32)
    low = np.min(x, axis=-1, initial=np.float32(0)).astype(np.float32)
    extreme = np.where(high >= -low, high, low)
    finite = np.isfinite(high) & np.isfinite(low)
    used = finite & (np.abs(extreme) >= TINY)
    safe = np.where(used, extreme, np.float32(1))
    inverse = np.where(used, -STEPS_4BIT / safe, np.float32(0)).astype(np.float32)
    scale = np.where(used, safe / -STEPS_4BIT, np.where(finite, np.float32(0), np.float32(np.nan)))
    clean = x if finite.all() else np.where(finite[..., None], x, np.float32(0))
    return np.clip(np.rint(clean * inverse[..., None]), -8, 7).astype(np.int8), scale.astype(np.float32)


@dataclass(frozen=True)
class QuantisedWeight:
    """A linear layer's weight: codes int8 [N, K], scales float32 [N, G], G = number of groups along K."""

    codes: I8
    scales: F32
    scheme: Scheme


def quantise_weight(w: F32, scheme: Scheme) -> QuantisedWeight:
    """Quantise w[N, K] with the rule of `quantise_rows` (8 bits) or `quantise_rows_4bit`, applied to every group of
    every output channel."""
    groups, quantise = scheme.groups(w.shape[1]), quantise_rows if scheme.bits == 8 else quantise_rows_4bit
    codes = np.empty(w.shape, np.int8)
    scales = np.empty((w.shape[0], len(groups)), np.float32)
    for g, (a, b) in enumerate(groups):
        codes[:, a:b], scales[:, g] = quantise(np.ascontiguousarray(w[:, a:b], np.float32))
    return QuantisedWeight(codes, scales, scheme)


def accumulate(x_codes: I8, w: QuantisedWeight) -> I32:
    """Exact integer products per group: [R, K] codes -> accumulators int32 [G, R, N].

    Runs on BLAS in floating point, which is exact here: every partial sum is an integer below 2**24 in
    float32 (groups up to 1040 inputs) or below 2**53 in float64.
    """
    groups = w.scheme.groups(w.codes.shape[1])
    out = np.empty((len(groups), x_codes.shape[0], w.codes.shape[0]), np.int32)
    for g, (a, b) in enumerate(groups):
        exact: np.dtype[Any] = np.dtype(np.float32 if (b - a) * QMAX * QMAX < 2**24 else np.float64)
        out[g] = x_codes[:, a:b].astype(exact) @ w.codes[:, a:b].astype(exact).T
    return out


def rescale(acc: I32, x_scale: F32, w: QuantisedWeight) -> F32:
    """Accumulators [G, R, N] -> float32 [R, N]: x_scale * sum over groups of acc * w_scale."""
    out = np.zeros(acc.shape[1:], np.float32)
    for g in range(acc.shape[0]):
        out += acc[g].astype(np.float32) * w.scales[:, g]
    out *= x_scale[:, None]
    return out
