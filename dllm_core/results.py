"""What an `Engine` hands back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Generation:
    """One finished answer. `tokens` is the whole canvas, prompt included; `text` ends before the first EOS."""

    text: str | None  # None without a tokenizer
    tokens: list[int]
    prompt_tokens: int  # how many of them are the prompt
    forward_passes: int
    steps: int
    rows_run: int  # rows of all forward passes together: the work that was done
    finish_reason: str  # "eos": an end token was written; "stop": a stop string; "length"; "filled"; "masks_left"
    seed: int
    backend: str
    isa: str
    scheme: str
    threads: int
    load_s: float
    generate_s: float
    ms_per_step: float
    useful_tokens: int  # generated tokens before the first end token
    canvas_tokens: int  # generated tokens, end tokens included
    masks_left: int
    peak_rss_bytes: int
    ms_by_kind: dict[str, float]  # milliseconds a step: gemm, attention, head, sampling, other

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Greedy:
    """`match`: the model's own `tokens` are exactly the answer's."""

    match: bool
    tokens: list[int]
    text: str | None  # None without a tokenizer


@dataclass(frozen=True)
class Totals:
    """Sums over the steps of a decode."""

    passes: int
    rows: int
    seconds: float
