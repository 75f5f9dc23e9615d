"""Backend "numba-int8": int8 linear layers in compiled loops, every other operator inherited from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dllm_numpy.backend import NumpyBackend

from dllm_core import quant
from dllm_core.backend import F32, Handle
from dllm_core.packing import Layout, Packed, lines
from dllm_core.tensors import Tensor

from .jit import start_threads, thread_count
from .kernel import U8, choose_kernel, usable_kernels
from .quantise import quantise

# Products below which one thread is done before a second one has woken up. Reading a weight from memory takes
# about as long as multiplying it by ten rows.
SERIAL = 2**26
READING = 10


@dataclass(frozen=True)
class NumbaLinear:
    """One projection in the layout of the backend's kernel (`kernel.Kernel`)."""

    scheme: quant.Scheme
    n: int
    k: int
    panels: U8
    scales: F32  # [P, G, columns of a panel], zero beyond N
    bias: F32  # [P * columns], zero if the projection has none

    @property
    def group(self) -> int:
        """Inputs per weight scale."""
        return self.scheme.group or -(-self.k // 4) * 4


class NumbaBackend(NumpyBackend):
    """int8 by compiled kernels; f32 and everything but `linear` as the reference does it.

    isa: force a kernel ("avx512vnni", "portable"); None: the one that DLLM_NUMBA_ISA names, else the best there is.
    threads: at most the size of numba's pool (`NUMBA_NUM_THREADS`, by default the number of CPUs); more are
    reduced to that, and the attribute `threads` tells the number in use. Results do not depend on it.
    """

    name = "numba-int8"
    schemes = ("f32", "qd8-f32-qc8w", "qd8-f32-qb8w")
    default_scheme = "qd8-f32-qb8w"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        super().__init__(start_threads(threads))
        self.kernel = choose_kernel(isa)
        self.isa = self.kernel.isa

    def isa_rows(self) -> list[str]:
        """The kernels that can run here, best first."""
        return usable_kernels()

    def with_isa(self, isa: str) -> NumbaBackend:
        """The same backend with the kernel called `isa`."""
        return NumbaBackend(self.threads, isa)

    # ---- weights ----

    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> Handle:
        how = quant.get_scheme(scheme)
        n, k = sum(w.shape[0] for w in weights), weights[0].shape[1]
        if not how.quantised or n == 0 or k == 0:
            return super().prepare_linear(weights, scheme, biases)
        columns = self.kernel.columns
        panels = self.kernel.allocate(n, k)
        scales = np.zeros((len(panels), len(how.groups(k)), columns), np.float32)
        bias = np.zeros(len(panels) * columns, np.float32)
        at = 0
        for weight in weights:
            for _, part in weight.chunks():
                codes, scale = self._quantise_weight(part, how)
                output = np.arange(at, at + len(part))
                self.kernel.store(panels, at, codes)
                scales[output // columns, :, output % columns] = scale
                at += len(part)
        if biases is not None:
            bias[:n] = np.concatenate([b.array() for b in biases])
        return NumbaLinear(how, n, k, panels, scales, bias)

    def _quantise_weight(self, w: F32, scheme: quant.Scheme) -> tuple[npt.NDArray[np.int8], F32]:
        """`dllm_core.quant.quantise_weight`, with every group of every output quantised like a row of activations."""
        n, k = w.shape
        codes, scales = np.empty((n, k), np.int8), np.empty((n, len(scheme.groups(k))), np.float32)
        width = min(scheme.group or k, k)
        whole = k // width * width
        for a, b, step in ((0, whole, width), (whole, k, k - whole)):
            if a < b:
                q = quantise(np.ascontiguousarray(w[:, a:b]).reshape(-1, step), step, self.threads)
                codes[:, a:b] = q.codes[: n * ((b - a) // step), :step].reshape(n, b - a)
                scales[:, a // width : -(-b // width)] = q.scale.reshape(n, -1)
        return codes, scales

    def unpack_linear(self, handle: Handle) -> tuple[npt.NDArray[Any], F32 | None]:
        if not isinstance(handle, NumbaLinear):
            return super().unpack_linear(handle)
        scales = handle.scales.transpose(0, 2, 1).reshape(-1, handle.scales.shape[1])
        return self.kernel.load(handle.panels, handle.n, handle.k), scales[: handle.n]

    def linear_bytes(self, handle: Handle) -> int:
        if not isinstance(handle, NumbaLinear):
            return super().linear_bytes(handle)
        return handle.panels.nbytes + handle.scales.nbytes + handle.bias.nbytes

    def layout(self, scheme: str) -> Layout:
        if not quant.get_scheme(scheme).quantised:
            return super().layout(scheme)
        return Layout("numba-int8", 1, self.isa, scheme, self.kernel.columns, self.kernel.depth, zero=128)

    def pack(self, handle: Handle) -> dict[str, npt.NDArray[Any]]:
        if not isinstance(handle, NumbaLinear):
            return super().pack(handle)
        return {"codes": handle.panels, "scales": handle.scales, "bias": handle.bias}

    def unpack_file(self, arrays: Mapping[str, npt.NDArray[Any]], meta: Packed) -> Handle:
        how = quant.get_scheme(meta.layout.scheme)
        if not how.quantised:
            return super().unpack_file(arrays, meta)
        count = -(-meta.n // self.kernel.columns)
        panels = lines(arrays["codes"]).reshape(count, *self.kernel.panel_shape(-(-meta.k // 4)))
        scales = arrays["scales"].reshape(count, -1, self.kernel.columns)
        bias = arrays.get("bias")
        bias = np.zeros(count * self.kernel.columns, np.float32) if bias is None else bias.reshape(-1)
        return NumbaLinear(how, meta.n, meta.k, panels, scales, bias)

    # ---- primitives ----

    def linear(self, x: F32, w: Handle, out: F32 | None = None) -> F32:
        if not isinstance(w, NumbaLinear):
            return super().linear(x, w, out)
        x = _checked(x, w)
        rows = x.shape[0]
        direct = out is not None and out.flags.c_contiguous and out.dtype == np.float32 and out.shape == (rows, w.n)
        y = out if direct else np.empty((rows, w.n), np.float32)
        q = quantise(x, w.group, self.threads)
        arguments = (q.codes, q.offsets, q.scale, w.panels, w.scales, w.bias, w.group, y)
        if self.threads == 1 or (rows + READING) * w.n * w.k < SERIAL:
            self.kernel.linear(0, len(w.panels), *arguments)
        else:
            with thread_count(self.threads):
                self.kernel.linear_parallel(self.threads, *arguments)
        if out is not None and not direct:
            out[...] = y
            return out
        return y

    def accumulators(self, x: F32, w: Handle) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
        if not isinstance(w, NumbaLinear):
            return super().accumulators(x, w)
        x = _checked(x, w)
        q = quantise(x, w.group, self.threads)
        acc = np.empty((w.scales.shape[1], x.shape[0], w.bias.size), np.int32)
        self.kernel.accumulate(q.codes, q.offsets, w.panels, w.group, acc)
        return q.codes[: x.shape[0], : w.k].copy(), q.scale, acc[:, :, : w.n].copy()


def _checked(x: F32, w: NumbaLinear) -> F32:
    """x as the kernels read it; compiled code does not look where it reads."""
    if x.ndim != 2 or x.shape[1] != w.k:
        raise ValueError(f"linear: x has shape {list(x.shape)}, the weight asks for [rows, {w.k}]")
    return np.ascontiguousarray(x, np.float32)
