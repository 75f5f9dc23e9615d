"""What a matrix kernel of this package provides, and the choice at run time."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from dllm_core.errors import UnsupportedError, UsageError
from dllm_core.packing import Layout
from dllm_core.quant import get_scheme

VARIABLE = "DLLM_NUMBA_ISA"


@dataclass(frozen=True)
class Kernel:
    """One instruction set's matrix product.

    Weights are unsigned, code + 128 or for four bits code + 8: x86 multiplies unsigned by signed bytes. The surplus,
    128 * sum(activations), is known when the activations are quantised, and accumulators start at minus that
    (`Codes.offsets`). Outputs come in panels of `columns`, laid out as `dllm_core.packing.Layout` tells.
    """

    isa: str
    columns: int
    depth: dict[int, int]  # bits of a weight -> inputs of one step of a panel, 0 for all
    linear: Callable[..., None]  # (claims on panels, *arguments of NumbaBackend.linear): see `Team.run`
    accumulate: Callable[..., None]  # (bits, codes, offsets, panels, group, int32 [G, R, P * columns])
    unavailable: Callable[[], str | None]  # why it cannot run here; None if it can

    def layout(self, scheme: str) -> Layout:
        """Where the numbers of a weight lie."""
        bits = get_scheme(scheme).bits
        return Layout("numba-int8", 1, self.isa, scheme, self.columns, self.depth[bits], zero=1 << (bits - 1))


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
