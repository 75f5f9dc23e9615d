"""What each quantisation scheme means, in numpy: rounding, scales, groups. Layout-free.

Backends may store codes in any order and fuse at will, but codes, scales and int32 accumulators must equal
these bit for bit. Scheme names follow XNNPACK: `qd8-f32-qc8w` reads "activations quantised dynamically to
int8, float32 out, weights int8 per channel"; `qb8w` has one scale per block (group) of 128 inputs.
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
# Rows whose largest magnitude is below this quantise to zero: 127 / amax would overflow float32.
TINY = np.float32(2.0**-100)


@dataclass(frozen=True)
class Scheme:
    """One quantisation scheme. `group` is the number of inputs per weight scale, 0 for the whole row."""

    name: str
    quantised: bool
    group: int
    summary: str

    def groups(self, k: int) -> list[tuple[int, int]]:
        """The [start, stop) bounds of the weight groups along K inputs; the last one may be shorter."""
        step = self.group or max(k, 1)
        return [(at, min(at + step, k)) for at in range(0, k, step)]


SCHEMES = {
    s.name: s
    for s in (
        Scheme("f32", False, 0, "float32 weights and activations"),
        Scheme("qd8-f32-qc8w", True, 0, "int8 weights per output channel, int8 activations per row"),
        Scheme("qd8-f32-qb8w", True, 128, "int8 weights per group of 128 inputs, int8 activations per row"),
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


@dataclass(frozen=True)
class QuantisedWeight:
    """A linear layer's weight: codes int8 [N, K], scales float32 [N, G], G = number of groups along K."""

    codes: I8
    scales: F32
    scheme: Scheme


def quantise_weight(w: F32, scheme: Scheme) -> QuantisedWeight:
    """Quantise w[N, K] with the rule of `quantise_rows`, applied to every group of every output channel."""
    groups = scheme.groups(w.shape[1])
    codes = np.empty(w.shape, np.int8)
    scales = np.empty((w.shape[0], len(groups)), np.float32)
    for g, (a, b) in enumerate(groups):
        codes[:, a:b], scales[:, g] = quantise_rows(np.ascontiguousarray(w[:, a:b], np.float32))
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
