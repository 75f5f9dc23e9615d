"""Repeated measurements and what is reported of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """ms (the median), ms_min, ms_p25, ms_p75 and the number of samples."""
    low, first, middle, third = np.percentile(seconds, [0, 25, 50, 75]) * 1e3
    return {"ms": middle, "ms_min": low, "ms_p25": first, "ms_p75": third, "samples": len(seconds)}


def share(value: float | None, limit: float | None) -> float | None:
    """value / limit, None where one of them is not known."""
    return None if not value or not limit else value / limit


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
