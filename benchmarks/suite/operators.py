"""The operators beside `linear`, at 128 rows of a 4096 wide model with 32 heads."""

from __future__ import annotations

import numpy as np

from dllm_core.backend import Rows
from dllm_core.decoding.canvas import full_rows
from dllm_core.models.base import rope_tables
from dllm_core.tensors import from_array
from dllm_core.testing.cases import CASES

from .common import BACKENDS, Timing, make_backend, normal, validate

ROWS, WIDTH, HEADS, HEAD_DIM, VOCAB = 128, 4096, 32, 128, 126464


class _Operator(Timing):
    params = BACKENDS
    param_names = ("backend",)
    op = ""

    def setup(self, name: str) -> None:
        self.backend = make_backend(name)
        for case in [c for c in CASES if c.op == self.op and c.scheme in self.backend.schemes][:6]:
            validate(case, self.backend)
        self.x = normal(ROWS, WIDTH)
        self.out = np.empty_like(self.x)


class Embed(_Operator):
    op = "embed"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.table, self.ids = from_array(normal(8192, WIDTH)), np.arange(ROWS) * 61

    def time_embed(self, name: str) -> None:
        self.backend.embed(self.table, self.ids)


class RmsNorm(_Operator):
    op = "rms_norm"

    def time_rms_norm(self, name: str) -> None:
        self.backend.rms_norm(self.x, self.x[0], 1e-5, self.out)


class Add(_Operator):
    op = "add_"

    def time_add(self, name: str) -> None:
        self.backend.add_(self.out, self.x)


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
    """All rows of one sequence attend to all of them; 32 heads share 32 or 8 key/value heads."""

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


class CachedAttention(_Operator):
    """A block of 32 rows against 512 cached positions and itself."""

    op = "attention"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.q = normal(32, HEADS, HEAD_DIM)
        self.k, self.v = normal(2, 544, HEADS, HEAD_DIM)
        at = np.arange(512, 544)
        self.rows = Rows(at, at, np.array([0, 32]), np.array([0, 544]))

    def time_attention(self, name: str) -> None:
        self.backend.attention(self.q, self.k, self.v, self.rows)


class Statistics(_Operator):
    op = "statistics"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.logits = normal(32, VOCAB)

    def time_statistics(self, name: str) -> None:
        self.backend.statistics(self.logits)


class Score(_Operator):
    """32 rows against a head of 8192 ids, int8 where the backend has it: product and statistics in one."""

    op = "score"

    def setup(self, name: str) -> None:
        super().setup(name)
        scheme = "qd8-f32-qc8w" if "qd8-f32-qc8w" in self.backend.schemes else "f32"
        self.head = self.backend.prepare_linear([from_array(normal(8192, WIDTH))], scheme)

    def time_score(self, name: str) -> None:
        self.backend.score(self.x[:32], self.head)


class Choose(_Operator):
    op = "choose"

    def setup(self, name: str) -> None:
        super().setup(name)
        self.logits = normal(8, VOCAB)
        self.noise = np.random.default_rng(0).random((8, VOCAB))

    def time_choose(self, name: str) -> None:
        self.backend.choose(self.logits, self.noise, 0.7)
