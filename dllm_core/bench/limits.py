"""What this machine can do at most: operations of the instructions that kernels are made of, reading memory, and
handing a cache line from thread to thread.

Measured by the native module (dllm_cffi), on the pool that runs its kernels, interleaved with the work: machines
are shared, and only ratios within one run can be compared.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..packing import aligned

KINDS = ("int8", "bf16", "f32", "int4")  # as dllm.h numbers them
PIECES = 160  # of some tens of microseconds each, a thread: waking the threads is then lost in it
BUFFER = 128 << 20
L3_IF_UNKNOWN = 32 << 20


class Limits:
    """Samples of the limits on `threads` threads, for the instruction set `isa` if it has kernels, else the best one.

    Rates are medians over all samples; None where the native module or the instruction is missing.
    """

    def __init__(self, threads: int, isa: str | None = None) -> None:
        self.threads = threads
        self.rates: dict[str, list[float]] = {}
        self.instructions: dict[str, str] = {}
        self.native: Any = None
        try:
            native, table = import_module("dllm_cffi._native"), import_module("dllm_cffi.rows")
        except ImportError:
            return
        self.native = native
        rows = table.supported_rows()
        self.isa = isa if isa in rows else rows[0]
        self.row = table.all_rows().index(self.isa)
        for kind in KINDS:
            name = native.lib.dllm_peak_instruction(self.row, KINDS.index(kind))
            if name != native.ffi.NULL:
                self.instructions[kind] = native.ffi.string(name).decode()
        self.buffer = aligned((max(BUFFER, 4 * l3_bytes()),), np.uint8)
        self.buffer.fill(1)  # untouched pages are all the same one

    def kind_of(self, scheme: str) -> str:
        """The kind of operation that a scheme's linear layers are made of on this instruction set.

        Where it multiplies no bfloat16, kernels widen it to float32; int4 weights are taken as int8 unless a faster
        instruction can do them.
        """
        kind = "int4" if "qb4w" in scheme else kind_of(scheme)
        return kind if kind in self.instructions else {"int4": "int8", "bf16": "f32"}.get(kind, kind)

    def sample(self, *kinds: str) -> dict[str, float]:
        """Measure these kinds of operation, and reading ("read"), once each: operations and bytes a second.

        "handover", with two threads or more: seconds that a cache line takes from one to another and back.
        """
        if self.native is None:
            return {}
        lib, ffi = self.native.lib, self.native.ffi
        found = {}
        for kind in kinds:
            if kind in self.instructions:
                found[kind] = lib.dllm_peak(self.row, self.threads, KINDS.index(kind), PIECES * self.threads)
        at = ffi.cast("void *", self.buffer.ctypes.data)
        found["read"] = lib.dllm_peak_read(self.row, self.threads, at, self.buffer.nbytes)
        if self.threads > 1 and (seconds := lib.dllm_peak_handover()):
            found["handover"] = seconds
        for name, rate in found.items():
            self.rates.setdefault(name, []).append(rate)
        return found

    def peak(self, kind: str) -> float | None:
        """Operations a second; a multiply and an add are one each."""
        return float(np.median(self.rates[kind])) if self.rates.get(kind) else None

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second read from memory."""
        return self.peak("read")

    def to_dict(self) -> dict[str, Any]:
        """isa, threads, GOP/s and instruction per kind, read_gbs, handover_ns."""
        if self.native is None:
            return {"isa": None, "threads": self.threads}
        found: dict[str, Any] = {"isa": self.isa, "threads": self.threads}
        for kind, name in self.instructions.items():
            rate = self.peak(kind)
            if rate is not None:
                found |= {f"{kind}_gops": rate / 1e9, f"{kind}_instruction": name}
        found["read_gbs"] = (self.bandwidth or 0) / 1e9
        handover = self.peak("handover")
        return found if handover is None else {**found, "handover_ns": handover * 1e9}


def kind_of(scheme: str) -> str:
    """The kind of operation that a scheme's linear layers are made of."""
    return "f32" if scheme == "f32" else "bf16" if "bf16" in scheme else "int8"


def l3_bytes() -> int:
    """The last-level cache of CPU 0."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        return L3_IF_UNKNOWN
