"""Backend "numpy": the reference. Every operator in plain numpy; other backends inherit what they do not override."""

from __future__ import annotations

from collections.abc import Callable

from dllm_core import hookimpl


@hookimpl
def dllm_register_backends(register: Callable[..., None]) -> None:
    def make(threads: int):  # numpy is imported only when the backend is asked for
        from .backend import NumpyBackend

        return NumpyBackend(threads)

    register("numpy", make, priority=0, summary="reference, plain numpy")
