"""Shared fixtures: the golden data (see golden/README.md) and models built from it on every exact backend.

A test marked `golden(kind, ...)` that takes `backend_name` and `case` runs once for every case of these kinds and
for every backend that computes in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dllm_core.checkpoint import open_folder
from dllm_core.models import build_model
from dllm_core.plugins import Registry, load_registry

GOLDEN = Path(__file__).parent / "golden"
EXACT_BACKENDS = ("numpy", "cffi-simd")  # those with float32 kernels of their own


@dataclass(frozen=True)
class GoldenCase:
    """One recorded run of the authors' code; keys of the json are read with case["key"]."""

    folder: Path
    name: str

    def __str__(self) -> str:
        return f"{self.folder.name}-{self.name}"

    @cached_property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "cases" / f"{self.name}.json").read_text())

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        path = self.folder / "cases" / f"{self.name}.npz"
        if not path.exists():
            return {}
        with np.load(path) as stored:
            return dict(stored)

    def __getitem__(self, key: str) -> Any:
        return self.record[key]


def golden_cases(*kinds: str, array: str = "") -> list[GoldenCase]:
    """All cases of some kinds, or those of them with an array whose name begins with `array`, in order of name."""
    found = [GoldenCase(path.parents[1], path.stem) for path in sorted(GOLDEN.glob("*/cases/*.json"))]
    found = [case for case in found if case["kind"] in kinds]
    return [case for case in found if not array or any(name.startswith(array) for name in case.arrays)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "golden(*kinds, array=''): one run per golden case of these kinds (with this array) and float32 backend",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("golden")
    if marker is None:
        return
    cases = golden_cases(*marker.args, **marker.kwargs)
    assert cases, f"no golden case for {marker}"
    metafunc.parametrize("case", cases, ids=str)
    metafunc.parametrize("backend_name", EXACT_BACKENDS)


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_registry()


@pytest.fixture(scope="session")
def golden_model(registry: Registry) -> Callable[[GoldenCase, str], Any]:
    """(case, backend name) -> the case's model in float32; models are kept for the session."""
    models: dict[tuple[str, str], Any] = {}

    def get(case: GoldenCase, backend_name: str) -> Any:
        key = (case.folder.name, backend_name)
        if key not in models:
            folder = open_folder(case.folder)
            # BLAS threads of small products wait by spinning, which takes minutes on a busy machine
            backend = registry.backend(backend_name, 1 if backend_name == "numpy" else 2)
            models[key] = build_model(folder.config, folder, backend, "f32", registry)
        return models[key]

    return get
