"""Which candidates a step commits. Pure functions over confidences; ties go to the lower index."""

from __future__ import annotations

import numpy as np

from ..backend import F32, I64


def quota(confidence: F32, k: int) -> I64:
    """Indices of the k most confident candidates, ascending; all of them when there are fewer."""
    order = np.argsort(-confidence.astype(np.float64), kind="stable")
    return np.sort(order[:k]).astype(np.int64)
