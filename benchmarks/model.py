"""One layer and one whole step of random models, and what a scheme costs in accuracy."""

from __future__ import annotations

import numpy as np

from dllm_core.backend import Backend
from dllm_core.decoding.canvas import full_rows
from dllm_core.decoding.loop import decode
from dllm_core.decoding.options import DecodeOptions
from dllm_core.models.llada import Llada
from dllm_core.testing.cases import CASES
from dllm_core.testing.check import all_logits
from dllm_core.testing.random_model import random_model

from .common import ALL_SCHEMES, BACKENDS, make_backend, normal, validate

SMALL = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 8, "mlp": 1376, "vocab": 8192}
WIDE = {"layers": 1, "width": 2048, "heads": 16, "kv_heads": 16, "mlp": 5504, "vocab": 32}


def validated(name: str, scheme: str) -> Backend:
    """The backend, after its layers have agreed with the reference."""
    backend = make_backend(name, scheme)
    for case in CASES:
        if case.op in ("layer", "score") and case.scheme == scheme:
            validate(case, backend)
    return backend


class Layer:
    params = (ALL_SCHEMES, BACKENDS, [32, 128])
    param_names = ("scheme", "backend", "rows")

    def setup(self, scheme: str, name: str, rows: int) -> None:
        self.model = random_model(validated(name, scheme), scheme, **WIDE)
        facts = self.model.facts
        self.rows = full_rows(np.array([0, rows]))
        self.kv = self.model.backend.allocate_kv(1, rows, facts.kv_heads, facts.head_dim)[0]
        self.x = normal(rows, facts.width)

    def time_layer(self, *_: object) -> None:
        self.model.backend.layer(self.x, self.model.layers[0], self.kv, self.rows)


def one_step(model: Llada, prompt: int, canvas: int) -> None:
    """A forward pass over prompt and canvas, the head on all of the canvas, one commit."""
    options = DecodeOptions(max_tokens=canvas, block_length=canvas, steps=canvas)
    next(decode(model, [list(range(prompt))], options))


class Step:
    """32 prompt tokens and a canvas of 96."""

    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        self.model = random_model(validated(name, scheme), scheme, **SMALL)
        one_step(self.model, 32, 96)

    def time_step(self, *_: object) -> None:
        one_step(self.model, 32, 96)


class Accuracy:
    """Mean square error of the logits of a random model over their mean square, against the reference in float32."""

    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        self.backend = make_backend(name, scheme)
        self.ids = np.random.default_rng(0).integers(0, 500, 48)

    def track_logit_nmse(self, scheme: str, name: str) -> float:
        want = all_logits(random_model(make_backend("numpy"), "f32", vocab=509, layers=4), self.ids)
        got = all_logits(random_model(self.backend, scheme, vocab=509, layers=4), self.ids)
        return float(np.square(got - want, dtype=np.float64).sum() / np.square(want, dtype=np.float64).sum())

    track_logit_nmse.unit = "NMSE"
