"""Which row of the dispatch table runs: the best that this CPU supports, or the one named by DLLM_ISA."""

from __future__ import annotations

import os

from dllm_core.errors import UsageError

from ._native import ffi, lib


def supported_rows() -> list[str]:
    """Names of the rows that can run here, best first."""
    return [name for row, name in enumerate(all_rows()) if lib.dllm_row_supported(row)]


def all_rows() -> list[str]:
    """Names of the rows that this build holds, best first."""
    return [ffi.string(lib.dllm_row_name(row)).decode() for row in range(lib.dllm_row_count())]


def choose_row(name: str | None) -> int:
    """The row called `name`, or if None the one that DLLM_ISA names, or the best. UsageError if it cannot run."""
    wanted = name or os.environ.get("DLLM_ISA")
    if not wanted:
        return all_rows().index(supported_rows()[0])
    choices = f"choose one of: {', '.join(supported_rows())}"
    if wanted not in all_rows():
        raise UsageError(f"unknown instruction set {wanted!r} (DLLM_ISA)", choices)
    if wanted not in supported_rows():
        raise UsageError(f"this CPU does not support the instruction set {wanted!r} (DLLM_ISA)", choices)
    return all_rows().index(wanted)


def last_kernel() -> str:
    """Full name of the GEMM kernel that ran last in this process, for tests and tools."""
    return ffi.string(lib.dllm_last_kernel()).decode()
