"""Backend "numba-int8": int8 and int4 linear layers in compiled loops, all else inherited from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dllm_numpy.backend import NumpyBackend

from dllm_core import quant
from dllm_core.backend import F32, Handle
from dllm_core.packing import Layout, Packed, aligned, lines
from dllm_core.tensors import Tensor

from .kernel import Kernel, choose_kernel, usable_kernels
from .quantise import pack_rows, quantise
from .team import Team

# Products that one thread computes before a second one has woken up. Reading a weight from memory takes about as long
# as multiplying it by ten rows.
SERIAL = 2**25
READING = 10


@dataclass(frozen=True)
class NumbaLinear:
    """One projection in the layout of the backend's kernel."""

    scheme: quant.Scheme
    layout: Layout
    n: int
    k: int
    panels: npt.NDArray[np.uint8]  # [P, steps, columns, bytes of an output in a step]
    scales: F32  # [P, G, columns], zero beyond N
    bias: F32  # [P * columns], zero if the projection has none

    @classmethod
    def over(cls, layout: Layout, n: int, k: int, panels: Any, scales: F32, bias: F32) -> NumbaLinear:
        """A projection over arrays of any shape; read-only, so that kernels are compiled for one kind of array."""
        count, columns = -(-n // layout.columns), layout.columns
        panels = panels.reshape(layout.arrays(n, k, False)["codes"][1])
        views = [panels.view(), scales.reshape(count, -1, columns), bias.reshape(-1).view()]
        for view in views:
            view.flags.writeable = False
        return cls(layout.how, layout, n, k, *views)

    @property
    def group(self) -> int:
        """Inputs per weight scale."""
        return self.scheme.group or -(-self.k // 4) * 4


class NumbaBackend(NumpyBackend):
    """int8 and int4 by compiled kernels; f32, bf16 and everything but `linear` as the reference does it.

    isa: force a kernel ("avx512vnni", "portable"); None: the one that DLLM_NUMBA_ISA names, else the best there is.
    Results do not depend on the number of threads.
    """

    name = "numba-int8"
    schemes = tuple(quant.SCHEMES)
    default_scheme = "qd8-f32-qb8w"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        super().__init__(threads)
        self.kernel: Kernel = choose_kernel(isa)
        self.isa = self.kernel.isa
        self.team = Team(threads)

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
        layout = self.layout(scheme)
        columns, zero = layout.columns, layout.zero
        panels = aligned(layout.arrays(n, k, False)["codes"][1], np.uint8)
        words = panels.reshape(-1).view(np.uint32)
        panels[-1] = zero  # outputs beyond N
        scales = np.zeros((len(panels), len(how.groups(k)), columns), np.float32)
        bias = np.zeros(len(panels) * columns, np.float32)
        at = 0
        for weight in weights:
            for _, part in weight.chunks(threads=self.threads):
                first, stop = at // columns, -(-(at + len(part)) // columns)
                arguments = (part, part.view(np.int32), at, how.bits == 4, how.group or k, zero, panels, words, scales)
                self.team.run(self.threads, pack_rows, first, stop, *arguments)
                at += len(part)
        if biases is not None:
            bias[:n] = np.concatenate([b.array() for b in biases])
        return NumbaLinear.over(layout, n, k, panels, scales, bias)

    def unpack_linear(self, handle: Handle) -> tuple[npt.NDArray[Any], F32 | None]:
        if not isinstance(handle, NumbaLinear):
            return super().unpack_linear(handle)
        rows = handle.layout.read({"codes": handle.panels, "scales": handle.scales}, handle.n, handle.k)
        return rows["codes"], rows["scales"]

    def linear_bytes(self, handle: Handle) -> int:
        if not isinstance(handle, NumbaLinear):
            return super().linear_bytes(handle)
        return handle.panels.nbytes + handle.scales.nbytes + handle.bias.nbytes

    def layout(self, scheme: str) -> Layout:
        return self.kernel.layout(scheme) if quant.get_scheme(scheme).quantised else super().layout(scheme)

    def pack(self, handle: Handle) -> dict[str, npt.NDArray[Any]]:
        if not isinstance(handle, NumbaLinear):
            return super().pack(handle)
        return {"codes": handle.panels, "scales": handle.scales, "bias": handle.bias}

    def unpack_file(self, arrays: Mapping[str, npt.NDArray[Any]], meta: Packed) -> Handle:
        if not meta.layout.how.quantised:
            return super().unpack_file(arrays, meta)
        bias = arrays.get("bias")
        if bias is None:
            bias = np.zeros(-(-meta.n // meta.layout.columns) * meta.layout.columns, np.float32)
        return NumbaLinear.over(meta.layout, meta.n, meta.k, lines(arrays["codes"]), arrays["scales"], bias)

    # ---- primitives ----

    def linear(self, x: F32, w: Handle, out: F32 | None = None) -> F32:
        if not isinstance(w, NumbaLinear):
            return super().linear(x, w, out)
        x = _checked(x, w)
        rows = x.shape[0]
        direct = out is not None and out.flags.c_contiguous and out.dtype == np.float32 and out.shape == (rows, w.n)
        y = out if direct else aligned((rows, w.n), np.float32)
        q = quantise(x, w.group, w.layout.zero, self.team)
        threads = 1 + (rows + READING) * w.n * w.k // SERIAL
        arguments = (w.scheme.bits, q.codes, q.offsets, q.scale, w.panels, w.scales, w.bias, w.group, y)
        self.team.run(threads, self.kernel.linear, 0, len(w.panels), *arguments)
        if out is not None and not direct:
            out[...] = y
            return out
        return y

    def accumulators(self, x: F32, w: Handle) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
        if not isinstance(w, NumbaLinear):
            return super().accumulators(x, w)
        x = _checked(x, w)
        q = quantise(x, w.group, w.layout.zero, self.team)
        acc = np.empty((w.scales.shape[1], x.shape[0], w.bias.size), np.int32)
        self.kernel.accumulate(w.scheme.bits, q.codes, q.offsets, w.panels, w.group, acc)
        return q.codes[: x.shape[0], : w.k].copy(), q.scale, acc[:, :, : w.n].copy()


def _checked(x: F32, w: NumbaLinear) -> F32:
    """x as the kernels read it; compiled code does not look where it reads."""
    if x.ndim != 2 or x.shape[1] != w.k:
        raise ValueError(f"linear: x has shape {list(x.shape)}, the weight asks for [rows, {w.k}]")
    x = np.ascontiguousarray(x, np.float32).view()
    x.flags.writeable = False  # as in `NumbaLinear.over`
    return x
