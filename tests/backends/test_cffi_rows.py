"""cffi-simd: which instruction set runs, and what happens when none can."""

import os
import subprocess
import sys

import numpy as np
import pytest
from dllm_cffi.backend import CffiBackend
from dllm_cffi.rows import all_rows, last_kernel, supported_rows

from dllm_core.errors import UsageError
from dllm_core.tensors import from_array

MATRIX = np.random.default_rng(0).standard_normal((40, 200)).astype(np.float32)
KERNELS = {
    "f32": "dllm_f32_gemm_",
    "bf16": "dllm_bf16_f32_gemm_",
    "qd8-f32-qc8w": "dllm_qd8_f32_q",
    "qd8-f32-qb8w": "dllm_qd8_f32_qb8w_",
    "qd8-f32-qb4w": "dllm_qd8_f32_qb4w_",
}


def kernel_isa(isa: str, scheme: str) -> str:
    """Rows that bring integer instructions alone share the other kernels of the row that they extend."""
    if scheme not in ("f32", "bf16"):
        return isa
    if (isa, scheme) == ("neoni8mm", "bf16"):
        return isa
    return {"avxvnni": "avx2", "neoni8mm": "neon", "neondot": "neon"}.get(isa, isa)


def test_scalar_is_the_last_row_and_always_runs() -> None:
    assert all_rows()[-1] == "scalar"
    assert supported_rows()[-1] == "scalar"


@pytest.mark.parametrize("scheme", KERNELS)
def test_the_row_asked_for_is_the_row_that_runs(scheme: str) -> None:
    for isa in supported_rows():
        backend = CffiBackend(1, isa)
        backend.linear(MATRIX, backend.prepare_linear([from_array(MATRIX)], scheme))
        assert backend.isa == isa
        assert last_kernel().startswith(KERNELS[scheme])
        assert last_kernel().endswith(f"__{kernel_isa(isa, scheme)}")


def test_the_best_row_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLLM_ISA", raising=False)
    assert CffiBackend(1).isa == supported_rows()[0]


@pytest.mark.parametrize("isa", supported_rows())
def test_the_environment_forces_a_row(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLLM_ISA", isa)
    backend = CffiBackend(1)
    backend.linear(MATRIX, backend.prepare_linear([from_array(MATRIX)], "qd8-f32-qb8w"))
    assert backend.isa == isa
    assert last_kernel().endswith(f"__{isa}")


def test_an_unknown_row_is_an_error_that_lists_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLLM_ISA", "sse9")
    with pytest.raises(UsageError, match="sse9") as caught:
        CffiBackend(1)
    assert caught.value.hint is not None
    assert all(isa in caught.value.hint for isa in supported_rows())


def test_a_row_that_the_cpu_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm_cffi.rows.supported_rows", lambda: ["scalar"])
    monkeypatch.setattr("dllm_cffi.rows.all_rows", lambda: ["wide", "scalar"])
    with pytest.raises(UsageError, match="does not support the instruction set 'wide'"):
        CffiBackend(1, "wide")


def python(code: str, **environment: str) -> str:
    run = [sys.executable, "-c", code]
    return subprocess.run(run, capture_output=True, text=True, check=True, env={**os.environ, **environment}).stdout


def test_registering_imports_neither_numpy_nor_the_module() -> None:
    code = "import sys, dllm_cffi; print(sorted({'numpy', 'dllm_cffi._native'} & set(sys.modules)))"
    assert python(code) == "[]\n"


def test_a_broken_module_makes_the_backend_unavailable() -> None:
    code = """
import sys
sys.modules["dllm_cffi._native"] = None
from dllm_core.errors import BackendUnavailable
from dllm_core.plugins import load_registry
registry = load_registry()
try:
    registry.backend("cffi-simd", 1)
except BackendUnavailable as error:
    print(error.message)
print(registry.best_backend(1).name)
"""
    reason, best = python(code).splitlines()
    assert reason.startswith("the native module cannot be imported")
    assert best != "cffi-simd"
