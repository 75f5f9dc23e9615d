"""The settings of a decode, checked in one place for the command line, Python and files alike."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

REMASKING = ("low_confidence", "random")


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of LLaDA's sampler (ML-GSAI/LLaDA generate.py); defaults where the model gives none.

    max_tokens is the length of the canvas after the prompt ("gen_length"), always filled to its end. `steps` is
    the number of forward passes over all blocks; None means one token a step.
    """

    max_tokens: int = 128
    steps: int | None = None
    block_length: int = 32
    temperature: float = 0.0
    remasking: str = "low_confidence"
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    seed: int = 0
    all_rows: bool = False  # score every row and not only the candidates; the tokens are the same

    def __post_init__(self) -> None:
        for key in ("max_tokens", "block_length", *(["steps"] if self.steps is not None else [])):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{flag(key)} is {value!r}", "it must be a whole number of at least 1")
        for key in ("temperature", "cfg_scale"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise UsageError(f"{flag(key)} is {value!r}", "it must be a finite number of at least 0")
        if self.remasking not in REMASKING:
            raise UsageError(f"{flag('remasking')} is {self.remasking!r}", f"choose one of: {', '.join(REMASKING)}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise UsageError(f"{flag('seed')} is {self.seed!r}", "it must be a whole number from 0 to 2^64 - 1")
        if self.total_steps < self.blocks:
            raise UsageError(
                f"{flag('steps')} is {self.steps}, fewer than the {self.blocks} blocks of the canvas",
                f"every block needs a step: raise --steps to {self.blocks} or more, or raise --block-length",
            )

    @property
    def total_steps(self) -> int:
        return self.max_tokens if self.steps is None else self.steps

    @property
    def blocks(self) -> int:
        return -(-self.max_tokens // self.block_length)

    @classmethod
    def build(cls, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> DecodeOptions:
        """`given` over the model's `defaults` over the built-in ones; None counts as not given.

        A model's default for `steps` belongs to its default canvas: it is dropped when another length is given.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r}", f"known options: {', '.join(sorted(known))}")
        chosen = {k: v for k, v in given.items() if v is not None}
        base = {k: v for k, v in (defaults or {}).items() if k in known and v is not None}
        if "max_tokens" in chosen:
            base.pop("steps", None)
            base["block_length"] = min(base.get("block_length", cls.block_length), max(1, _whole(chosen["max_tokens"])))
        return cls(**{**base, **chosen})


def flag(key: str) -> str:
    """The command-line spelling of an option."""
    return "--" + key.replace("_", "-")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 1
