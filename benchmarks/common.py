"""What all benchmarks share: the parameters, backends that skip where they cannot run, validation before timing."""

from __future__ import annotations

import numpy as np

from dllm_core.api import default_threads
from dllm_core.backend import Backend
from dllm_core.errors import BackendUnavailable
from dllm_core.plugins import load_registry
from dllm_core.quant import SCHEMES
from dllm_core.testing.case import Case, compare

BACKENDS = ["numpy", "numba-int8", "cffi-simd"]
ALL_SCHEMES = list(SCHEMES)


def make_backend(name: str, scheme: str = "f32", threads: int | None = None) -> Backend:
    """The backend on all cores; NotImplementedError, which asv skips, if it cannot run here or lacks the scheme."""
    try:
        backend = load_registry().backend(name, threads or default_threads())
    except BackendUnavailable as error:
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
