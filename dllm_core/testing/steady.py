"""What a backend allocates once it is warm: memory that stays, and memory that comes and goes with a call."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..backend import Backend
from ..tensors import from_array
from .operators import segment_rows

ROWS, K, N = 130, 1000, 270
CALLS = 64
WORK = ("linear", "rms_norm", "swiglu", "attention")  # the operators that take `out=`


@dataclass(frozen=True)
class Grown:
    """Bytes by which memory grew over `CALLS` rounds of all operators. Keeping the smallest output of every round would
    make `least` of them."""

    scratch: int
    traced: int  # arrays of numpy and objects of Python
    resident: int  # of the process; 0 where the system does not tell
    least: int = CALLS * ROWS * min(K, N) * 4


def calls(backend: Backend, scheme: str) -> dict[str, Callable[[], object]]:
    """One call of every operator that takes `out=`, large enough for several threads."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((ROWS, K), np.float32), rng.standard_normal((N, K), np.float32)
    handle = backend.prepare_linear([from_array(weight)], scheme)
    norm, wide, half = np.ones(K, np.float32), np.empty((ROWS, K), np.float32), np.empty((ROWS, K // 2), np.float32)
    narrow = np.empty((ROWS, N), np.float32)
    q, k, v = rng.standard_normal((3, ROWS, 10, K // 10), np.float32)
    rows = segment_rows(((100, 100), (30, 30)))
    return {
        "linear": lambda: backend.linear(x, handle, narrow),
        "rms_norm": lambda: backend.rms_norm(x, norm, 1e-5, wide),
        "swiglu": lambda: backend.swiglu(x, half),
        "attention": lambda: backend.attention(q, k, v, rows, wide),
    }


def held(backend: Backend, scheme: str) -> Grown:
    """What is still there after many rounds and was not after the first few."""
    work = calls(backend, scheme)

    def rounds(count: int) -> None:
        for _ in range(count):
            for call in work.values():
                call()

    rounds(8)
    tracemalloc.start()
    try:
        rounds(1)  # what tracing itself allocates
        before = backend.scratch_bytes, tracemalloc.get_traced_memory()[0], _resident()
        rounds(CALLS)
        after = backend.scratch_bytes, tracemalloc.get_traced_memory()[0], _resident()
    finally:
        tracemalloc.stop()
    return Grown(*(b - a for a, b in zip(before, after, strict=True)))


def temporaries(backend: Backend, scheme: str, op: str) -> int:
    """The most bytes of arrays and Python objects that one warm call of an operator holds at a time."""
    call = calls(backend, scheme)[op]
    call()
    tracemalloc.start()
    try:
        call()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _resident() -> int:
    """Bytes of memory that the process holds, where Linux tells."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
