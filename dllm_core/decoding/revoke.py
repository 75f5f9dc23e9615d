"""Self-correction: taking back committed tokens.

Pure functions; every position is taken back a bounded number of times, so every decode ends.
"""

from __future__ import annotations

import numpy as np

from ..backend import F32, I64


def below(probability: F32, times: I64, least: float, limit: int) -> I64:
    """Indices of committed tokens that the model, seeing what was committed since, now gives less than `least`.

    `times` counts how often each position was taken back already; at `limit` a token stays.
    """
    return np.flatnonzero((probability < least) & (times < limit)).astype(np.int64)


def remdm(uniforms: F32, times: I64, rate: float, limit: int) -> I64:
    """Indices of committed tokens remasked by chance, each with probability `rate` (ReMDM-cap, Wang et al. 2025).

    The step that follows commits that many more, so the schedule of masks is kept; none at the last step.
    """
    return np.flatnonzero((uniforms < rate) & (times < limit)).astype(np.int64)
