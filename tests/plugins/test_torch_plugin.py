"""The torch plugin without torch; its backend is tested in plugins/dllm_torch/tests, where torch is installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dllm_core.errors import BackendUnavailable
from dllm_core.plugins import load_registry


def test_a_missing_torch_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("MKL_CBWR", os.environ.get("MKL_CBWR", "AUTO,STRICT"))
    registry = load_registry()
    with pytest.raises(BackendUnavailable, match="torch cannot be imported") as error:
        registry.backend("torch", 1)
    assert error.value.hint == 'pip install "dllm[torch]"'
    assert registry.best_backend(1).name == "cffi-simd"


def test_nobody_gets_torch_without_asking() -> None:
    registry = load_registry()
    assert registry.backends["torch"].priority < registry.backends["numpy"].priority


def test_torch_is_not_imported_before_its_backend_is_chosen() -> None:
    code = "import sys; from dllm_core.plugins import load_registry; load_registry().best_backend(1)"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
