"""One denoising step of a whole model: a forward pass over some rows, the head over those that are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..api import peak_rss_bytes
from ..backend import Backend, Handle, Rows
from ..errors import DllmError, UsageError
from ..models.base import Shaped, Tensors, projection
from ..testing.case import compare
from ..testing.cases import CASES
from .limits import Limits
from .samples import Measured, timed


class Recorded:
    """A source of tensors that notes the shape of every projection that is prepared from it."""

    def __init__(self, source: Tensors) -> None:
        self.source = source
        self.shapes: dict[str, tuple[int, int]] = {}
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def projection(
        self, backend: Backend, scheme: str, name: str, weights: Sequence[Shaped], biases: Sequence[Shaped] = ()
    ) -> Handle:
        handle = projection(self.source, backend, scheme, name, weights, biases)
        self.shapes[name] = sum(shape[0] for _, shape in weights), weights[0][1][1]
        self.bytes += backend.linear_bytes(handle)
        return handle


class Work:
    """Operations in matrix products and in attention, counted where the graph asks for them."""

    def __init__(self, model: Any, shapes: dict[str, tuple[int, int]]) -> None:
        self.model, self.shapes = model, shapes
        self.operations = self.attention = 0
        self._inside = 0

    def _products(self, rows: int, *names: str) -> int:
        return sum(2 * rows * n * k for n, k in (self.shapes.get(name, (0, 0)) for name in names))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Watch the backend's `layers` and `score`, and `linear` with the head (decoding that must see logits)."""
        backend = self.model.backend
        layers, score, linear = backend.layers, backend.score, backend.linear

        def watch_layers(x: Any, of: Any, kv: Any, rows: Rows, keep: Any = None) -> Any:
            for i in range(len(of)):
                kept = len(rows) if keep is None or i < len(of) - 1 else len(keep)
                outputs, width = self.shapes.get(f"layers.{i}.qkv", (0, 0))
                _, queries = self.shapes.get(f"layers.{i}.attn_out", (0, 0))
                self.operations += 2 * width * (len(rows) * (outputs - queries) + kept * queries)
                self.attention += 4 * kept * int(rows.kv_offsets[-1]) * queries  # of one sequence
                parts = (f"layers.{i}.{part}" for part in ("attn_out", "gate_up", "down"))
                self.operations += self._products(kept, *parts)
            return layers(x, of, kv, rows, keep)

        def watch_score(h: Any, head: Handle) -> Any:
            self.operations += self._products(len(h), "head")
            self._inside += 1
            try:
                return score(h, head)
            finally:
                self._inside -= 1

        def watch_linear(x: Any, w: Handle, out: Any = None) -> Any:
            if w is self.model.head and not self._inside:
                self.operations += self._products(len(x), "head")
            return linear(x, w, out)

        watched = {"layers": watch_layers, "score": watch_score, "linear": watch_linear}
        vars(backend).update(watched)
        try:
            yield
        finally:
            for name in watched:
                delattr(backend, name)


def validate_layers(backend: Backend, scheme: str) -> None:
    """DllmError unless the backend's layer and head agree with the reference on the operator cases."""
    for case in CASES:
        if case.op in ("layer", "score") and case.scheme == scheme:
            problems = compare(case, case.run(backend)).problems
            if problems:
                raise DllmError(f"{backend.name} {backend.isa} is wrong and not timed: {case.name}: {problems[0]}")


def bench_step(
    model: Any,
    source: Recorded,
    name: str,
    rows: int,
    head_rows: int,
    cached: int = 0,
    repeats: int = 5,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Limits, dict[str, Any]]:
    """Time a pass of `rows` rows against `cached` earlier positions, and the head on the last `head_rows` of them.

    Returns the limits and a result that also has `split` (milliseconds per kind of work, medians over passes),
    `layers` (milliseconds per layer), `first_ms` (the pass after loading), `peak_rss_bytes` (until then) and
    `at_most`: the share of the peak if attention ran at that of float32 and everything else took no time.
    Products of the last layer count only for the rows that are kept.
    """
    facts, backend = model.facts, model.backend
    if not 0 <= head_rows <= rows or rows < 1 or cached < 0:
        raise UsageError(
            f"--rows {rows}, --head-rows {head_rows}, --cached {cached}", "0 <= head rows <= rows, rows >= 1"
        )
    if rows + cached > facts.max_length:
        raise UsageError(f"{cached} cached and {rows} rows exceed the model's limit of {facts.max_length}")
    validate_layers(backend, model.scheme)
    say(f"validated the layers of {backend.name} {backend.isa} {model.scheme} against the reference")
    step = _step(model, rows, head_rows, cached)
    first, resident = timed(step), peak_rss_bytes()
    limits = Limits(backend.threads, backend.isa)
    measured, splits, layers, bounds = Measured(limits.kind_of(model.scheme)), [], [], []
    for _ in range(repeats):
        limit = limits.sample(*{measured.kind, "f32"})
        backend.clock.seconds.clear()
        backend.clock.layers.clear()
        work = Work(model, source.shapes)
        with work.counting():
            measured.add(limit, [timed(step)])
        splits.append(dict(backend.clock.seconds))
        layers.append([backend.clock.layers[i] for i in range(facts.layers)])
        if {measured.kind, "f32"} <= set(limit):
            products, attention = work.operations / limit[measured.kind], work.attention / limit["f32"]
            bounds.append(products / (products + attention))
    result = measured.report(work.operations, source.bytes)
    kinds = sorted({kind for split in splits for kind in split})
    split = {kind: 1e3 * float(np.median([s.get(kind, 0.0) for s in splits])) for kind in kinds}
    split["rest"] = max(result["ms"] - sum(split.values()), 0.0)
    return limits, {
        **who(model, name),
        "rows": rows,
        "head_rows": head_rows,
        "cached": cached,
        **result,
        "weight_bytes": source.bytes,
        "peak_rss_bytes": resident,
        "first_ms": 1e3 * first,
        "at_most": float(np.median(bounds)) if bounds else None,
        "split": split,
        "layers": [1e3 * float(ms) for ms in np.median(layers, axis=0)],
    }


def _step(model: Any, rows: int, head_rows: int, cached: int) -> Callable[[], Any]:
    facts, backend = model.facts, model.backend
    ids = np.random.default_rng(0).integers(0, facts.vocab_size, rows)
    at = np.arange(cached, cached + rows)
    which = Rows(at, at, np.array([0, rows], np.int64), np.array([0, cached + rows], np.int64))
    kv = backend.allocate_kv(facts.layers, cached + rows, facts.kv_heads, facts.head_dim)
    keep = None if head_rows == rows else np.arange(rows - head_rows, rows)
    if head_rows == 0:
        return lambda: model.hidden(ids, kv, which)
    return lambda: backend.score(model.hidden(ids, kv, which, keep), model.head)


def who(model: Any, name: str) -> dict[str, Any]:
    backend = model.backend
    return {
        "backend": backend.name,
        "isa": backend.isa,
        "threads": backend.threads,
        "scheme": model.scheme,
        "shape": f"{name}, {model.facts.layers} layers",
    }
