"""Named decoding strategies: one table. Plugins add more (`dllm_register_strategies`)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError


@dataclass(frozen=True)
class Strategy:
    """Fields of `DecodeOptions` under one name. They stand between the model's defaults and explicit flags."""

    options: dict[str, Any]
    summary: str


# In blocks and by probability, whatever the model's own sampler does.
SURE = {"schedule": "linear", "remasking": "low_confidence", "commit": "threshold", "threshold": 0.9, "eos": "stop"}

STRATEGIES = {
    "reference": Strategy({"eos": "keep"}, "the model's own sampler: fixed steps, every row, the whole canvas"),
    "fast": Strategy(
        {**SURE, "cache": "none"},
        "commit everything surer than 0.9, stop at the end of the answer",
    ),
    "fast-dual": Strategy(
        {**SURE, "cache": "dual"},
        "the same with Fast-dLLM's dual cache: later passes of a block run the block alone",
    ),
    "fast-prefix": Strategy(
        {**SURE, "cache": "prefix"},
        "the same with Fast-dLLM's prefix cache",
    ),
    "careful": Strategy(
        {**SURE, "threshold": 0.7, "revoke": "confidence", "revoke_below": 0.5},
        "commit wide, then take back what the richer context doubts",
    ),
}


def find(name: str, strategies: Mapping[str, Strategy]) -> Strategy:
    """The strategy called `name`; UsageError with the nearest name if there is none."""
    if name not in strategies:
        near = difflib.get_close_matches(name, strategies, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown strategy {name!r}", f"{hint}known strategies: {', '.join(sorted(strategies))}")
    return strategies[name]
