"""What a matrix kernel of this package provides, how weights get into its layout, and the choice at run time."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dllm_core.errors import UnsupportedError, UsageError

VARIABLE = "DLLM_NUMBA_ISA"
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I8 = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Kernel:
    """One instruction set's matrix product.

    Weights are unsigned, code + 128: x86 multiplies unsigned by signed bytes. The surplus 128 * sum(activations) is
    known when the activations are quantised, and accumulators start at minus that (`Codes.offsets`). Outputs come in
    panels of `columns`; K is padded to a multiple of 4 with weights that are zero as unsigned numbers.
    """

    isa: str
    columns: int
    depth: int  # inputs of one output that lie together, 0 for all: `dllm_core.packing.Layout`
    panel_shape: Callable[[int], tuple[int, ...]]  # K / 4, rounded up -> shape of one panel in memory
    by_output: Callable[[U8], U32]  # panels -> a view of them, [P, columns, K / 4], four weights in each word
    linear: Callable[..., None]  # (first panel, last panel, *arguments of NumbaBackend.linear)
    linear_parallel: Callable[..., None]  # (parts, *the same arguments)
    accumulate: Callable[..., None]  # (codes, offsets, panels, group, int32 [G, R, P * columns])
    unavailable: Callable[[], str | None]  # why it cannot run here; None if it can

    def allocate(self, n: int, k: int) -> U8:
        """Panels for weights [n, k], at the start of a cache line, all zero."""
        shape = (-(-n // self.columns), *self.panel_shape(-(-k // 4)))
        size = int(np.prod(shape))
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size].reshape(shape)

    def store(self, panels: U8, at: int, codes: I8) -> None:
        """Write the codes [n, K] of outputs at .. at + n."""
        n, k = codes.shape
        view = self.by_output(panels)
        padded = np.zeros((n, 4 * view.shape[2]), np.uint8)
        np.bitwise_xor(codes.view(np.uint8), np.uint8(128), out=padded[:, :k])  # + 128, modulo 256
        output = np.arange(at, at + n)
        view[output // self.columns, output % self.columns] = padded.view(np.uint32)

    def load(self, panels: U8, n: int, k: int) -> I8:
        """The codes [n, k] that `store` wrote."""
        words = self.by_output(panels)
        rows = np.ascontiguousarray(words.reshape(len(words) * self.columns, -1)[:n])
        return np.bitwise_xor(rows.view(np.uint8)[:, :k], np.uint8(128)).view(np.int8)


# In order of preference: module of this package that holds KERNEL.
MODULES = {"avx512vnni": "gemm_avx512vnni", "portable": "gemm_portable"}


def find_kernel(isa: str) -> Kernel:
    """The kernel called `isa`, whether or not it can run here."""
    return importlib.import_module(f".{MODULES[isa]}", __package__).KERNEL


def usable_kernels() -> list[str]:
    """Names of the kernels that can run here, best first."""
    return [isa for isa in MODULES if find_kernel(isa).unavailable() is None]


def choose_kernel(forced: str | None = None) -> Kernel:
    """The kernel called `forced`, else the one that DLLM_NUMBA_ISA names, else the best one that can run here.

    UsageError for an unknown name, UnsupportedError for one that cannot run here; both list the choices.
    """
    usable = usable_kernels()
    name, origin = (forced, "isa") if forced else (os.environ.get(VARIABLE), VARIABLE)
    if not name:
        return find_kernel(usable[0])
    hint = f"kernels that can run here: {', '.join(usable)}"
    if name not in MODULES:
        raise UsageError(f"{origin}={name}: numba-int8 has no such kernel", hint)
    if name not in usable:
        raise UnsupportedError(f"{origin}={name} cannot run here: {find_kernel(name).unavailable()}", hint)
    return find_kernel(name)
