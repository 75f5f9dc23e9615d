"""What an `Engine` hands back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Generation:
    """One finished answer, with what it took. Fields that speak of passes or time are those of its whole batch."""

    text: str | None  # the answer before the first end token; None without a tokenizer
    tokens: list[int]  # the whole canvas, prompt included
    prompt_tokens: int  # how many of them are the prompt
    forward_passes: int
    steps: int  # the same number: every pass is a step
    rows_run: int  # rows of all forward passes together: the work that was done
    finish_reason: str  # "eos": an end token was written; "stop": a stop string; "length"; "filled"; "masks_left"
    seed: int
    backend: str
    isa: str  # instruction set of its kernels
    scheme: str
    threads: int
    load_s: float  # seconds that loading the model took
    generate_s: float  # seconds of all passes
    ms_per_step: float  # milliseconds of a pass
    useful_tokens: int  # generated tokens before the first end token
    canvas_tokens: int  # generated tokens, end tokens included
    masks_left: int  # masks that are still on the canvas
    peak_rss_bytes: int  # the largest resident size that the process has had
    ms_by_kind: dict[str, float]  # milliseconds a step: gemm, attention, head, sampling, other

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Greedy:
    """What greedy decoding writes in place of an answer."""

    match: bool  # the tokens are exactly the answer's
    tokens: list[int]  # the model's own
    text: str | None  # of these; None without a tokenizer


@dataclass(frozen=True)
class Totals:
    """Sums over the steps of a decode."""

    passes: int
    rows: int
    seconds: float
