"""Whole answers of a model, per decoding strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..api import Engine
from .limits import Limits
from .samples import Measured
from .step import Recorded, Work, validate_layers, who

PROMPT = "What is 217 + 384?"
PROMPT_IDS = list(range(1, 33))  # for models without a tokenizer


def bench_decode(
    engine: Engine,
    source: Recorded,
    strategies: Sequence[str],
    max_tokens: int | None = None,
    repeats: int = 5,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Limits, list[dict[str, Any]]]:
    """Time answers to one prompt with every strategy in turn. `ms` is of one forward pass, `rows` its mean rows."""
    model, backend = engine.model, engine.backend
    limits = Limits(backend.threads, backend.isa)
    validate_layers(backend, model.scheme)
    say(f"validated the layers of {backend.name} {backend.isa} {model.scheme} against the reference")
    prompt = PROMPT if engine.tokenizer is not None else PROMPT_IDS
    given: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    answers: dict[str, list[Any]] = {name: [] for name in strategies}
    work = {name: Work(model, source.shapes) for name in strategies}
    measured = {name: Measured(limits.kind_of(model.scheme)) for name in strategies}
    for name in strategies:
        engine.generate(prompt, strategy=name, **given)
    for _ in range(repeats):
        for name in strategies:
            limit = limits.sample(limits.kind_of(model.scheme))
            with work[name].counting():
                answer = engine.generate(prompt, strategy=name, **given)
            answers[name].append(answer)
            measured[name].add(limit, [answer.generate_s / answer.forward_passes])
    return limits, [
        _result(engine, name, answers[name], work[name].operations / repeats, measured[name], source)
        for name in strategies
    ]


def _result(
    engine: Engine, strategy: str, answers: list[Any], operations: float, measured: Measured, source: Recorded
) -> dict[str, Any]:
    last = answers[-1]
    passes = last.forward_passes
    seconds = sorted(answer.generate_s for answer in answers)[len(answers) // 2]
    return {
        **who(engine.model, engine.name),
        "strategy": strategy,
        "rows": last.rows_run / passes,
        **measured.report(operations / passes, source.bytes),
        "forward_passes": passes,
        "answer_ms": 1e3 * seconds,
        "useful_tokens": last.useful_tokens,
        "useful_tokens_per_s": last.useful_tokens / seconds,
        "canvas_tokens_per_s": last.canvas_tokens / seconds,
    }
