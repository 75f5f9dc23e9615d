"""One layer and one denoising step, of small random models on every backend and of LLaDA-8B's shape on the fast one.

Of LLaDA-8B's 32 layers there are two, and the same share of its vocabulary, so that the head keeps its proportion. The
last layer, which computes its output for scored rows only, weighs more than in a whole model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dllm_core.backend import Backend, Rows
from dllm_core.bench.random_folder import SHAPES, RandomFolder
from dllm_core.bench.step import Recorded
from dllm_core.decoding.canvas import full_rows
from dllm_core.decoding.loop import decode
from dllm_core.decoding.options import DecodeOptions
from dllm_core.models import build_model
from dllm_core.models.llada import Llada
from dllm_core.testing.cases import CASES
from dllm_core.testing.check import all_logits
from dllm_core.testing.random_model import random_model

from .common import BACKENDS, FAST, QUANTISED, SCHEMES, THREADS, Timing, make_backend, missed, normal, validate

SMALL = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 8, "mlp": 1376, "vocab": 8192}
WIDE = {"layers": 1, "width": 1024, "heads": 8, "kv_heads": 8, "mlp": 2752, "vocab": 32}
LARGE, LARGE_LAYERS = "llada-8b", 2
# name: rows, cached positions before them, rows that are scored
PASSES = {"128 rows": (128, 0, 32), "512 rows": (512, 0, 32), "32 rows after 512": (32, 512, 32)}


def validated(name: str, scheme: str, threads: int | None = None) -> Backend:
    """The backend, after its layers have agreed with the reference."""
    backend = make_backend(name, scheme, threads)
    for case in CASES:
        if case.op in ("layer", "score") and case.scheme == scheme:
            validate(case, backend)
    return backend


def forward(model: Llada, rows: int, cached: int, head_rows: int) -> Callable[[], object]:
    """A pass over `rows` rows against `cached` earlier positions, with the statistics of the last `head_rows`."""
    facts, backend = model.facts, model.backend
    ids = np.random.default_rng(0).integers(0, facts.vocab_size, rows)
    at = np.arange(cached, cached + rows)
    which = Rows(at, at, np.array([0, rows], np.int64), np.array([0, cached + rows], np.int64))
    kv = backend.allocate_kv(facts.layers, cached + rows, facts.kv_heads, facts.head_dim)
    keep = None if head_rows == rows else np.arange(rows - head_rows, rows)
    return lambda: backend.score(model.hidden(ids, kv, which, keep), model.head)


def large(scheme: str, threads: int | None, layers: int = LARGE_LAYERS) -> tuple[Llada, Recorded]:
    """The first layers of LLaDA-8B's shape on the fast backend, and what was packed of them."""
    shape = SHAPES[LARGE]
    vocab = shape["embedding_size"] * layers // shape["n_layers"]
    small = {"vocab_size": vocab, "embedding_size": vocab, "mask_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    source = Recorded(RandomFolder(f"random:{LARGE}"))
    return build_model(
        {**shape, "n_layers": layers, **small}, source, make_backend(FAST, scheme, threads), scheme
    ), source


def operations(shapes: dict[str, tuple[int, int]], rows: int, head_rows: int) -> int:
    """In matrix products: the last layer's only for the rows that are scored, but for its keys and values."""
    last = f"layers.{LARGE_LAYERS - 1}."
    total = 0
    for name, (n, k) in shapes.items():
        kept = name == "head" or (name.startswith(last) and not name.endswith("qkv"))
        total += 2 * n * k * (head_rows if kept else rows)
    return total


class Layer(Timing):
    params = (BACKENDS, SCHEMES, [32, 128])
    param_names = ("backend", "scheme", "rows")

    def setup(self, name: str, scheme: str, rows: int) -> None:
        self.prepare(random_model(validated(name, scheme), scheme, **WIDE), rows)

    def prepare(self, model: Llada, rows: int) -> None:
        self.model, facts = model, model.facts
        self.rows = full_rows(np.array([0, rows]))
        self.kv = model.backend.allocate_kv(1, rows, facts.kv_heads, facts.head_dim)[0]
        self.x = normal(rows, facts.width)

    def time_layer(self, *_: object) -> None:
        self.model.backend.layer(self.x, self.model.layers[0], self.kv, self.rows)


class LargeLayer(Layer):
    """One layer of LLaDA-8B on all cores. Its weights, 220 MB in int8, are read from memory every time."""

    params = ([*QUANTISED, "bf16"], [32, 128])
    param_names = ("scheme", "rows")

    def setup(self, scheme: str, rows: int) -> None:
        validated(FAST, scheme)
        self.prepare(large(scheme, None, 1)[0], rows)


def one_step(model: Llada, prompt: int, canvas: int) -> None:
    """A forward pass over prompt and canvas, the head on all of the canvas, one commit."""
    options = DecodeOptions(max_tokens=canvas, block_length=canvas, steps=canvas)
    next(decode(model, [list(range(prompt))], options))


class Step(Timing):
    """32 prompt tokens and a canvas of 96: forward pass, statistics, one commit."""

    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        self.model = random_model(validated(name, scheme), scheme, **SMALL)
        one_step(self.model, 32, 96)

    def time_step(self, *_: object) -> None:
        one_step(self.model, 32, 96)


class _LargePass(Timing):
    """A pass of LLaDA-8B's shape, cut as above."""

    def prepare(self, scheme: str, name: str, threads: int | None = None) -> None:
        self.backend = validated(FAST, scheme, threads)
        model, source = large(scheme, threads)
        self.shapes, self.step = source.shapes, forward(model, *PASSES[name])
        self.step()


class LargeStep(_LargePass):
    """On all cores. `MissedStep` has one thread too."""

    params = ([*QUANTISED, "bf16"], list(PASSES))
    param_names = ("scheme", "pass")

    def setup(self, scheme: str, name: str) -> None:
        self.prepare(scheme, name)

    def time_step(self, *_: object) -> None:
        self.step()


class MissedStep(_LargePass):
    """Percent of the machine's peak of multiplications that such a pass, int8 per channel, leaves unused."""

    params = (list(PASSES), THREADS)
    param_names = ("pass", "threads")

    def setup(self, name: str, threads: int) -> None:
        self.prepare("qd8-f32-qc8w", name, threads)

    def track_missed(self, name: str, threads: int) -> float:
        rows, _, head_rows = PASSES[name]
        return missed(self.backend, "int8", operations(self.shapes, rows, head_rows), self.step)

    track_missed.unit = "%"


class Accuracy:
    """Mean square error of the logits of a random model over their mean square, against the reference in float32."""

    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        self.backend = make_backend(name, scheme)
        self.ids = np.random.default_rng(0).integers(0, 500, 48)

    def track_logit_nmse(self, name: str, scheme: str) -> float:
        want = all_logits(random_model(make_backend("numpy"), "f32", vocab=509, layers=4), self.ids)
        got = all_logits(random_model(self.backend, scheme, vocab=509, layers=4), self.ids)
        return float(np.square(got - want, dtype=np.float64).sum() / np.square(want, dtype=np.float64).sum())

    track_logit_nmse.unit = "NMSE"
