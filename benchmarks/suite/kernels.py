"""`linear`, with quantisation of the rows and epilogue: shapes of an 8B model, instruction sets, backends.

The weights of the large shapes rotate through more copies than the last cache holds, as cold as in a model.
"""

from __future__ import annotations

from itertools import cycle

from dllm_core.bench.kernel import copies
from dllm_core.bench.limits import kind_of
from dllm_core.tensors import from_array
from dllm_core.testing.linear_case import LinearCase

from .common import BACKENDS, FAST, ISAS, QUANTISED, SCHEMES, THREADS, Timing, make_backend, missed, normal, validate
from .neighbour import busy_process

SHAPES = {"4096x4096": (4096, 4096), "12288x4096": (12288, 4096), "4096x12288": (4096, 12288)}  # outputs x inputs
SMALL = {"160x416": (160, 416), "1000x1000": (1000, 1000)}


class _Linear(Timing):
    def prepare(self, backend, scheme: str, shape: tuple[int, int], rows: int, warm: bool = False) -> None:
        n, k = shape
        validate(LinearCase(min(rows, 16), k, (64,), scheme), backend)
        self.backend, self.x = backend, normal(rows, k)
        self.handles = cycle(copies(backend, scheme, n, k, warm))
        self.out = backend.linear(self.x, next(self.handles))

    def run(self) -> None:
        self.backend.linear(self.x, next(self.handles), self.out)


class Linear(_Linear):
    """The shapes of an 8B model on the best instruction set and all cores. `Missed` has one thread too."""

    params = ([*QUANTISED, "bf16"], list(SHAPES), [1, 8, 32, 128, 512])
    param_names = ("scheme", "shape", "rows")

    def setup(self, scheme: str, shape: str, rows: int) -> None:
        self.prepare(make_backend(FAST, scheme), scheme, SHAPES[shape], rows)

    def time_linear(self, *_: object) -> None:
        self.run()


class Isa(_Linear):
    """Every row of the kernel table, one thread: a cold layer, and a warm one with partial panels and groups."""

    params = (ISAS, SCHEMES, ["512x2048", "1000x1000"], [8, 128])
    param_names = ("isa", "scheme", "shape", "rows")

    def setup(self, isa: str, scheme: str, shape: str, rows: int) -> None:
        n, k = map(int, shape.split("x"))
        self.prepare(make_backend(FAST, scheme, 1, isa), scheme, (n, k), rows, warm=n == 1000)

    def time_linear(self, *_: object) -> None:
        self.run()


class Numba(_Linear):
    params = (QUANTISED, [8, 32, 128], THREADS)
    param_names = ("scheme", "rows", "threads")

    def setup(self, scheme: str, rows: int, threads: int) -> None:
        self.prepare(make_backend("numba-int8", scheme, threads), scheme, SHAPES["4096x4096"], rows)

    def time_linear(self, *_: object) -> None:
        self.run()


class Backends(_Linear):
    """The same small layers on every backend, weights warm: what a call costs, and what the reference does."""

    params = (BACKENDS, SCHEMES, list(SMALL), [1, 128])
    param_names = ("backend", "scheme", "shape", "rows")

    def setup(self, name: str, scheme: str, shape: str, rows: int) -> None:
        self.prepare(make_backend(name, scheme), scheme, SMALL[shape], rows, warm=True)

    def time_linear(self, *_: object) -> None:
        self.run()


class Neighbour(_Linear):
    """128 rows while another process, at nice 15, wants a core: two threads must not be slower than one."""

    params = THREADS
    param_names = ("threads",)
    repeat = (9, 15, 2.0)

    def setup(self, threads: int) -> None:
        self.prepare(make_backend(FAST, QUANTISED[0], threads), QUANTISED[0], SHAPES["4096x4096"], 128)
        self.busy = busy_process()

    def teardown(self, threads: int) -> None:
        if hasattr(self, "busy"):
            self.busy.kill()
            self.busy.wait()

    def time_linear(self, threads: int) -> None:
        self.run()


# what docs/performance.md states: backend, instruction set (None: the best), scheme, shape, rows
LINES = [
    *((FAST, None, "qd8-f32-qc8w", shape, rows) for shape in SHAPES for rows in (1, 8, 32, 128, 512)),
    *((FAST, None, "qd8-f32-qb8w", shape, 128) for shape in SHAPES),
    *((FAST, None, "qd8-f32-qb4w", "4096x4096", rows) for rows in (8, 128)),
    (FAST, None, "bf16", "4096x4096", 128),
    (FAST, "avx2", "qd8-f32-qc8w", "4096x4096", 128),
    ("numba-int8", None, "qd8-f32-qc8w", "4096x4096", 128),
]


class Missed(_Linear):
    """Percent of the limit that is left unused: of reading memory for one row, else of the multiplications."""

    params = ([" ".join(str(part) for part in line if part is not None) for line in LINES], THREADS)
    param_names = ("line", "threads")

    def setup(self, line: str, threads: int) -> None:
        name, isa, self.scheme, self.shape, self.rows = LINES[self.params[0].index(line)]
        self.prepare(make_backend(name, self.scheme, threads, isa), self.scheme, SHAPES[self.shape], self.rows)

    def track_missed(self, line: str, threads: int) -> float:
        n, k = SHAPES[self.shape]
        if self.rows == 1:
            size = self.backend.linear_bytes(next(self.handles))
            return missed(self.backend, "read", size, self.run)
        return missed(self.backend, kind_of(self.scheme), 2 * self.rows * n * k, self.run)

    track_missed.unit = "%"


class Pack(Timing):
    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        self.backend = make_backend(name, scheme)
        validate(LinearCase(2, 129, (33, 8), scheme), self.backend)
        self.weight = from_array(normal(2048, 2048))

    def time_prepare_linear(self, name: str, scheme: str) -> None:
        self.backend.prepare_linear([self.weight], scheme)

    def track_bytes_per_weight(self, name: str, scheme: str) -> float:
        return self.backend.linear_bytes(self.backend.prepare_linear([self.weight], scheme)) / 2048**2

    track_bytes_per_weight.unit = "bytes"
