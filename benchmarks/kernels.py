"""`linear`: every scheme on every backend, at shapes of the model inside and of an 8B model, by number of rows.

One copy of the weights, as warm as the call before left it.
"""

from __future__ import annotations

from dllm_core.tensors import from_array
from dllm_core.testing.linear_case import LinearCase

from .common import ALL_SCHEMES, BACKENDS, make_backend, normal, validate

SHAPES = {"160x416": (160, 416), "1000x1000": (1000, 1000), "4096x4096": (4096, 4096)}  # outputs x inputs


class Linear:
    params = (ALL_SCHEMES, BACKENDS, list(SHAPES), [1, 32, 128])
    param_names = ("scheme", "backend", "shape", "rows")

    def setup(self, scheme: str, name: str, shape: str, rows: int) -> None:
        n, k = SHAPES[shape]
        self.backend = make_backend(name, scheme)
        validate(LinearCase(min(rows, 16), k, (n,), scheme), self.backend)
        self.x = normal(rows, k)
        self.handle = self.backend.prepare_linear([from_array(normal(n, k))], scheme)
        self.out = self.backend.linear(self.x, self.handle)

    def time_linear(self, *_: object) -> None:
        self.backend.linear(self.x, self.handle, self.out)


class Pack:
    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        self.backend = make_backend(name, scheme)
        validate(LinearCase(2, 129, (33, 8), scheme), self.backend)
        self.weight = from_array(normal(2048, 2048))

    def time_prepare_linear(self, scheme: str, name: str) -> None:
        self.backend.prepare_linear([self.weight], scheme)

    def track_bytes_per_weight(self, scheme: str, name: str) -> float:
        return self.backend.linear_bytes(self.backend.prepare_linear([self.weight], scheme)) / 2048**2

    track_bytes_per_weight.unit = "bytes"
