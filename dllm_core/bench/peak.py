"""The machine's limits by themselves, for several numbers of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .limits import KINDS, Limits


def bench_peak(threads: Sequence[int], isa: str | None = None, repeats: int = 9) -> list[dict[str, Any]]:
    """One result per limit and number of threads: GOP/s, or GB/s for "read", as median, minimum and quartiles."""
    limits = [Limits(count, isa) for count in threads]
    if limits[0].native is None:
        raise UnsupportedError("limits are measured by the native module, which cannot be imported", "reinstall dllm")
    for limit in limits:
        limit.sample(*KINDS)  # starts threads and clocks
        limit.rates.clear()
    for _ in range(repeats):
        for limit in limits:
            limit.sample(*KINDS)
    return [_result(limit, what) for what in (*KINDS, "read") for limit in limits if what in limit.rates]


def _result(limits: Limits, what: str) -> dict[str, Any]:
    low, first, middle, third = np.percentile(limits.rates[what], [0, 25, 50, 75]) / 1e9
    return {
        "what": what,
        "instruction": limits.instructions.get(what, f"{limits.buffer.nbytes >> 20} MiB of memory"),
        "isa": limits.isa,
        "threads": limits.threads,
        "unit": "GB/s" if what == "read" else "GOP/s",
        "rate": middle,
        "rate_min": low,
        "rate_p25": first,
        "rate_p75": third,
        "samples": len(limits.rates[what]),
    }
