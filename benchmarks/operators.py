"""The operators beside `linear`, at 128 rows of a 4096 wide model with 32 heads."""

from __future__ import annotations

import numpy as np

from dllm_core.decoding.canvas import full_rows
from dllm_core.models.base import rope_tables
from dllm_core.testing.cases import CASES

from .common import BACKENDS, make_backend, normal, validate

ROWS, WIDTH, HEADS, HEAD_DIM = 128, 4096, 32, 128


class _Operator:
    params = BACKENDS
    param_names = ("backend",)
    op = ""

    def setup(self, name: str) -> None:
        self.backend = make_backend(name)
        for case in CASES:
            if case.op == self.op:
                validate(case, self.backend)
        self.x = normal(ROWS, WIDTH)
        self.out = np.empty_like(self.x)


class RmsNorm(_Operator):
    op = "rms_norm"

    def time_rms_norm(self, name: str) -> None:
        self.backend.rms_norm(self.x, self.x[0], 1e-5, self.out)


class Rope(_Operator):
    op = "rope"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.cos, self.sin = rope_tables(HEAD_DIM, 10000.0, ROWS)

    def time_rope(self, name: str) -> None:
        self.backend.rope(self.x, HEADS, self.cos, self.sin, np.arange(ROWS))


class Swiglu(_Operator):
    op = "swiglu"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.gate_up = normal(ROWS, 2 * WIDTH)

    def time_swiglu(self, name: str) -> None:
        self.backend.swiglu(self.gate_up, self.out)


class Attention(_Operator):
    params = (BACKENDS, [32, 8], [128, 512])
    param_names = ("backend", "kv_heads", "keys")
    op = "attention"

    def setup(self, name: str, kv_heads: int, keys: int) -> None:
        super().setup(name)
        self.q = normal(keys, HEADS, HEAD_DIM)
        self.k, self.v = normal(2, keys, kv_heads, HEAD_DIM)
        self.rows = full_rows(np.array([0, keys]))

    def time_attention(self, name: str, kv_heads: int, keys: int) -> None:
        self.backend.attention(self.q, self.k, self.v, self.rows)


class Statistics(_Operator):
    op = "statistics"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.logits = normal(32, 126464)

    def time_statistics(self, name: str) -> None:
        self.backend.statistics(self.logits)


class Choose(_Operator):
    op = "choose"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.logits = normal(8, 126464)
        self.noise = np.random.default_rng(0).random((8, 126464))

    def time_choose(self, name: str) -> None:
        self.backend.choose(self.logits, self.noise, 0.7)
