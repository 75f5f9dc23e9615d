"""The part of the suite that runs on every change: short, and within a core's own caches, so little disturbed.

`benchmarks/continuous.py` compares two commits with it; `asv run --python=same --quick --dry-run --bench quick` runs it
once.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dllm_core.decoding.canvas import full_rows
from dllm_core.models.base import rope_tables
from dllm_core.tensors import from_array
from dllm_core.testing.case import compare
from dllm_core.testing.cases import CASES
from dllm_core.testing.linear_case import LinearCase
from dllm_core.testing.random_model import random_model

from .common import BACKENDS, FAST, ISAS, SCHEMES, Timing, make_backend, normal, validate
from .kernels import _Linear
from .model import one_step

OPERATORS = ["embed", "rms_norm", "add_", "rope", "swiglu", "attention", "statistics", "score", "choose"]


class _Short(Timing):
    repeat = (4, 8, 0.3)
    warmup_time = 0.05


class QuickKernel(_Linear, _Short):
    """Every row of the kernel table, one thread, a weight that stays in the second cache."""

    params = (ISAS, SCHEMES, [4, 64])
    param_names = ("isa", "scheme", "rows")

    def setup(self, isa: str, scheme: str, rows: int) -> None:
        self.prepare(make_backend(FAST, scheme, 1, isa), scheme, (192, 1024), rows, warm=True)

    def time_linear(self, *_: object) -> None:
        self.run()


class QuickBackend(_Linear, _Short):
    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        self.prepare(make_backend(name, scheme, 1), scheme, (130, 300), 33, warm=True)

    def time_linear(self, *_: object) -> None:
        self.run()


class QuickThreads(_Linear, _Short):
    params = (["numba-int8", FAST],)
    param_names = ("backend",)

    def setup(self, name: str) -> None:
        self.prepare(make_backend(name, "qd8-f32-qc8w", 2), "qd8-f32-qc8w", (1024, 1024), 128, warm=True)

    def time_linear(self, name: str) -> None:
        self.run()


class QuickOperator(_Short):
    """The other operators, one thread: 16 rows of a 1024 wide model with 8 heads."""

    params = OPERATORS
    param_names = ("operator",)

    def setup(self, op: str) -> None:
        backend = self.backend = make_backend(FAST, threads=1)
        for case in [c for c in CASES if c.op == op and c.scheme in backend.schemes][:4]:
            validate(case, backend)
        x, heads = normal(16, 1024), normal(64, 8, 128)
        scheme = "qd8-f32-qc8w" if "qd8-f32-qc8w" in backend.schemes else "f32"
        matrix = from_array(normal(1024, 1024))
        self.call = {
            "embed": partial(backend.embed, matrix, np.arange(16) * 61),
            "rms_norm": partial(backend.rms_norm, x, x[0], 1e-5, np.empty_like(x)),
            "add_": partial(backend.add_, np.zeros_like(x), x),
            "rope": partial(backend.rope, x.copy(), 8, *rope_tables(128, 10000.0, 16), np.arange(16)),
            "swiglu": partial(backend.swiglu, x, np.empty((16, 512), np.float32)),
            "attention": partial(backend.attention, heads, heads, heads, full_rows(np.array([0, 64]))),
            "statistics": partial(backend.statistics, normal(4, 8192)),
            "score": partial(backend.score, x, backend.prepare_linear([matrix], scheme)),
            "choose": partial(backend.choose, normal(2, 2048), np.random.default_rng(0).random((2, 2048)), 0.7),
        }[op]

    def time_operator(self, op: str) -> None:
        self.call()


class QuickStep(_Short):
    """A forward pass over 32 rows of a small model, statistics and one commit."""

    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        self.model = random_model(make_backend(name, scheme, 1), scheme)
        one_step(self.model, 8, 24)

    def time_step(self, *_: object) -> None:
        one_step(self.model, 8, 24)


class QuickMemory:
    params = BACKENDS
    param_names = ("backend",)

    def setup(self, name: str) -> None:
        make_backend(name)

    def peakmem_step(self, name: str) -> None:
        backend = make_backend(name)
        one_step(random_model(backend, backend.default_scheme), 8, 24)


class QuickStart:
    rounds = 1
    repeat = 4

    def timeraw_import(self) -> str:
        return "import dllm_core"

    def timeraw_plugins(self) -> str:
        return "from dllm_core.plugins import load_registry; load_registry()"


class QuickAccuracy:
    """What a scheme costs on one projection, beside float64: see `dllm_core.testing.case.Difference`. Below 1e-9 it is
    the order of sums alone, and counts as 1e-9."""

    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        self.backend = make_backend(name, scheme)

    def track_linear_nmse(self, name: str, scheme: str) -> float:
        case = LinearCase(33, 300, (130,), scheme)
        return max(compare(case, case.run(self.backend)).nmse, 1e-9)

    track_linear_nmse.unit = "NMSE"
