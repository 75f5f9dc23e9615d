"""A small suite that ends within a minute, for every change: asv run --python=same --quick --dry-run --bench Quick"""

from __future__ import annotations

from dllm_core.tensors import from_array
from dllm_core.testing.case import compare
from dllm_core.testing.linear_case import LinearCase
from dllm_core.testing.random_model import random_model

from .common import ALL_SCHEMES, BACKENDS, make_backend, normal, validate
from .model import one_step


class QuickLinear:
    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        self.backend = make_backend(name, scheme)
        validate(LinearCase(33, 300, (130,), scheme), self.backend)
        self.x = normal(33, 300)
        self.handle = self.backend.prepare_linear([from_array(normal(130, 300))], scheme)

    def time_linear(self, *_: object) -> None:
        self.backend.linear(self.x, self.handle)


class QuickStep:
    params = BACKENDS
    param_names = ("backend",)

    def setup(self, name: str) -> None:
        backend = make_backend(name)
        self.model = random_model(backend, backend.default_scheme)
        one_step(self.model, 8, 24)

    def time_step(self, name: str) -> None:
        one_step(self.model, 8, 24)

    def peakmem_step(self, name: str) -> None:
        one_step(self.model, 8, 24)


class QuickStart:
    def timeraw_import(self) -> str:
        return "import dllm_core"

    def timeraw_plugins(self) -> str:
        return "from dllm_core.plugins import load_registry; load_registry()"


class QuickAccuracy:
    """What int8 costs on one projection, beside float64: see `dllm_core.testing.case.Difference`."""

    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        self.backend = make_backend(name, scheme)

    def track_linear_nmse(self, scheme: str, name: str) -> float:
        case = LinearCase(33, 300, (130,), scheme)
        return compare(case, case.run(self.backend)).nmse

    track_linear_nmse.unit = "NMSE"
