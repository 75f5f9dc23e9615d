"""Repeated measurements, each beside the machine's limits of that moment, and what is reported of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Measured:
    """Seconds of one piece of work, in rounds; every round has the limits that were measured just before it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # of operation: a key of the limits
        self.rounds: list[tuple[dict[str, float], list[float]]] = []

    def add(self, limits: dict[str, float], seconds: Sequence[float]) -> None:
        self.rounds.append((limits, list(seconds)))

    def report(self, operations: float, size: float) -> dict[str, Any]:
        """ms (the median), ms_min, ms_p25, ms_p75, samples, gops, and shares of the limits by `operations` done and
        `size` bytes read. A share is the median over rounds: what else runs on the machine changes with time.
        """
        seconds = [s for _, each in self.rounds for s in each]
        low, first, middle, third = np.percentile(seconds, [0, 25, 50, 75]) * 1e3
        return {
            "ms": middle,
            "ms_min": low,
            "ms_p25": first,
            "ms_p75": third,
            "samples": len(seconds),
            "gops": operations / middle / 1e6 if operations else None,
            "share_of_peak": self._share(operations, self.kind),
            "share_of_bandwidth": self._share(size, "read"),
            "peak": self._limit(self.kind),
            "bandwidth": self._limit("read"),
            "handover_ns": self._limit("handover", 1e-9),
        }

    def _share(self, amount: float, limit: str) -> float | None:
        shares = [amount / np.median(each) / rates[limit] for rates, each in self.rounds if limit in rates]
        return float(np.median(shares)) if shares and amount else None

    def _limit(self, name: str, unit: float = 1e9) -> float | None:
        """Its median."""
        found = [rates[name] for rates, _ in self.rounds if name in rates]
        return float(np.median(found)) / unit if found else None


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
