"""The machine's limits by themselves, for several numbers of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .limits import KINDS, Limits

UNITS = {"read": ("memory", "GB/s"), "handover": ("a cache line to another thread and back", "ns")}


def bench_peak(threads: Sequence[int], isa: str | None = None, repeats: int = 9) -> list[dict[str, Any]]:
    """One result per limit and number of threads, as median, minimum and quartiles: GOP/s, GB/s for "read", ns for
    "handover"."""
    limits = [Limits(count, isa) for count in threads]
    if limits[0].native is None:
        raise UnsupportedError("limits are measured by the native module, which cannot be imported", "reinstall dllm")
    for limit in limits:
        limit.sample(*KINDS)  # starts threads and clocks
        limit.rates.clear()
    for _ in range(repeats):
        for limit in limits:
            limit.sample(*KINDS)
    return [_result(limit, what) for what in (*KINDS, *UNITS) for limit in limits if what in limit.rates]


def _result(limits: Limits, what: str) -> dict[str, Any]:
    how, unit = UNITS.get(what, (limits.instructions.get(what), "GOP/s"))
    scale = 1e9 if unit == "ns" else 1e-9
    low, first, middle, third = np.percentile(limits.rates[what], [0, 25, 50, 75]) * scale
    return {
        "what": what,
        "instruction": how if what != "read" else f"{limits.buffer.nbytes >> 20} MiB of {how}",
        "isa": limits.isa,
        "threads": limits.threads,
        "unit": unit,
        "rate": middle,
        "rate_min": low,
        "rate_p25": first,
        "rate_p75": third,
        "samples": len(limits.rates[what]),
    }
