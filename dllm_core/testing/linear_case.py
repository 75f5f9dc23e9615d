"""The case class of `linear`, where integers are compared exactly, and the data that breaks kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..backend import F32, Backend
from ..quant import TINY as ROW_IS_ZERO
from ..quant import get_scheme
from ..tensors import from_array
from .case import TINY, UNIT, Array, Case, Guarded, Outputs, walk


@dataclass(frozen=True)
class LinearCase(Case):
    """linear, accumulators, unpack_linear: x [rows, k] times weights [n, k], several n fused into one projection.

    data: "normal"; "extreme": every code is -127 or 127; "large": sums that float32 cannot count; "ties": codes fall
    on halves; "edges": rows and channels of zeros, of denormals, of one value, of large numbers, and (quantised only)
    rows with NaN and infinity.
    """

    rows: int
    k: int
    n: tuple[int, ...]
    scheme: str
    data: str = "normal"
    bias: bool = False

    op = "linear"
    scheme_matters = True
    reason = "float32 sums of K products (f32, bf16) or of one product per group (codes), in any order"

    def inputs(self) -> tuple[F32, list[F32], list[F32] | None]:
        rng = self.rng()
        x = rng.standard_normal((self.rows, self.k), np.float32)
        w = rng.standard_normal((sum(self.n), self.k), np.float32) * np.float32(self.k**-0.5)
        if self.data == "extreme":
            x, w = np.copysign(np.float32(3), x), np.copysign(np.float32(0.02), w)
            x[:1], w[:1] = 3, 0.02  # the largest accumulator there is
        elif self.data == "large":  # codes 127 times codes 126 and 127, all of one sign
            x, w = np.full_like(x, 3), rng.integers(126, 128, w.shape).astype(np.float32)
        elif self.data == "ties":
            x = np.rint(x * 40).clip(-126, 126).astype(np.float32) + np.float32(0.5)
            x[:, 0] = 127
        elif self.data == "edges":
            x, w = edges(x, get_scheme(self.scheme).quantised), edges(w, False)
        parts = np.split(w, np.cumsum(self.n)[:-1])
        bias = [rng.standard_normal(n, np.float32) for n in self.n] if self.bias else None
        return x, [np.ascontiguousarray(p) for p in parts], bias

    def run(self, backend: Backend) -> Outputs:
        x, weights, bias = self.inputs()
        biases = None if bias is None else [from_array(b) for b in bias]
        handle = backend.prepare_linear([from_array(w) for w in weights], self.scheme, biases)
        out = Guarded(self.rows, sum(self.n))
        y = out.check(backend.linear(x, handle, out.array))
        again = backend.linear(x, handle)
        if not np.array_equal(y, again, equal_nan=True):
            raise ValueError("linear gives other numbers without out=")
        codes, scales = backend.unpack_linear(handle)
        exact: dict[str, Array] = {"weight codes": codes}
        if scales is not None:
            exact["weight scales"] = scales
            exact.update(zip(("codes", "scales", "accumulators"), backend.accumulators(x, handle), strict=True))
        return Outputs(exact, {"y": y})

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        x, _, bias = self.inputs()
        if not get_scheme(self.scheme).quantised:
            w = reference.exact["weight codes"]  # float32 or rounded; rounding adds at most 1 / 256 to x
            size = 1.01 * np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T
            # products that are alike round alike: their errors add up and do not walk
            limit = (walk(self.k) if self.data == "normal" else max(walk(self.k), self.k * UNIT)) * size
        else:
            acc, scales = np.abs(reference.exact["accumulators"].astype(np.float64)), reference.exact["weight scales"]
            size = np.einsum("grn,ng->rn", acc, np.abs(scales.astype(np.float64)))
            size *= np.nan_to_num(reference.exact["scales"].astype(np.float64))[:, None]
            limit = walk(len(acc)) * size
        if bias is not None:
            limit = limit + 2 * UNIT * (size + np.abs(np.concatenate(bias)))
        return {"y": limit + TINY}

    def truth(self) -> Array | None:
        x, weights, bias = self.inputs()
        with np.errstate(invalid="ignore"):
            y = x.astype(np.float64) @ np.concatenate(weights).astype(np.float64).T
        return y if bias is None else y + np.concatenate(bias)


def edges(x: F32, faulty: bool) -> F32:
    """`x` with its rows replaced, in turn, by the shapes of data that break kernels."""
    k = x.shape[1]
    shapes = [
        np.zeros(k),
        np.full(k, 1e-41),  # denormal
        np.where(np.arange(k) == k - 1, -2.5, 0),  # one value, in the last place
        np.full(k, float(ROW_IS_ZERO) * 0.99),
        np.full(k, -7.0),
        x[:1].ravel() * 1e12 if len(x) else x,
        np.where(np.arange(k) % 2, 1, -1) * 127.0,
    ]
    if faulty:
        shapes += [np.where(np.arange(k) == 0, np.nan, 1), np.where(np.arange(k) == k // 2, -np.inf, 1)]
    x = x.copy()
    for i, shape in enumerate(shapes):
        if i < len(x):
            x[i] = shape
    return x
