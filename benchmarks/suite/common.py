"""What all benchmarks share: the parameters, backends that skip where they cannot run, validation before timing.

asv runs this suite against packages of other commits and finds a combination of parameters by its index. So the lists
are written out and not taken from the package; what a commit lacks is skipped. `tests.py` beside this folder tells when
a scheme, backend or instruction set of the package is missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from platform import machine

import numpy as np

from dllm_core.api import default_threads
from dllm_core.backend import Backend
from dllm_core.bench.limits import Limits
from dllm_core.bench.samples import timed
from dllm_core.errors import BackendUnavailable, UsageError
from dllm_core.plugins import load_registry
from dllm_core.testing.case import Case, compare

BACKENDS = ["numpy", "numba-int8", "cffi-simd"]
QUANTISED = ["qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w"]
SCHEMES = ["f32", "bf16", *QUANTISED]
X86, ARM = ["avx512vnni", "avxvnni", "avx2", "scalar"], ["neoni8mm", "neondot", "neon", "scalar"]
ISAS = ARM if machine() in ("aarch64", "arm64") else X86
THREADS = [1, 2]
FAST = "cffi-simd"


class Timing:
    """How long a benchmark takes: one process, 3 to 6 samples of 10 ms and more."""

    rounds = 1
    repeat = (3, 6, 0.3)
    sample_time = 0.01
    warmup_time = 0.02
    timeout = 120


def make_backend(name: str, scheme: str = "f32", threads: int | None = None, isa: str | None = None) -> Backend:
    """The backend, on all cores if not told; NotImplementedError, which asv skips, if it cannot run here or lacks
    the scheme."""
    try:
        backend = load_registry().backend(name, threads or default_threads())
        backend = backend if isa is None else backend.with_isa(isa)
    except (BackendUnavailable, UsageError) as error:
        raise NotImplementedError(error.message) from error
    if scheme not in backend.schemes:
        raise NotImplementedError(f"{name} has no scheme {scheme}")
    return backend


def validate(case: Case, backend: Backend) -> None:
    """RuntimeError unless the backend agrees with the reference: a wrong kernel is never timed."""
    problems = compare(case, case.run(backend)).problems
    if problems:
        raise RuntimeError(f"{backend.name} {backend.isa}: {case.name}: {'; '.join(problems)}")


def normal(*shape: int) -> np.ndarray:
    """Standard normal float32, the same every time."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def missed(backend: Backend, kind: str, amount: float, call: Callable[[], object], rounds: int = 5) -> float:
    """Percent of a limit of this machine that `call` leaves unused: 0 is the limit, larger is worse.

    kind: "int8", "bf16", "f32" (`amount` operations) or "read" (`amount` bytes). Every round takes the limit first,
    so that what else runs on the machine slows both. NaN, which asv shows as skipped, where no limit is known.
    """
    limits = Limits(backend.threads, backend.isa)
    call()
    shares = []
    for _ in range(rounds):
        rate = limits.sample(*({kind} - {"read"})).get(kind)
        if rate is None:
            return float("nan")
        seconds = [timed(call)]
        while sum(seconds) < 0.02:
            seconds.append(timed(call))
        shares.append(amount / float(np.median(seconds)) / rate)
    return 100 * (1 - float(np.median(shares)))
