"""Backend "numba-int8": int8 and int4 linear layers compiled at run time by numba, imported in the factory only."""

from __future__ import annotations

from collections.abc import Callable

from dllm_core import hookimpl


@hookimpl
def dllm_register_backends(register: Callable[..., None]) -> None:
    def make(threads: int):
        from dllm_core.errors import BackendUnavailable

        try:
            from .backend import NumbaBackend
        except ImportError as error:
            raise BackendUnavailable(f"numba cannot be imported: {error}", 'pip install "numba>=0.62"') from error
        return NumbaBackend(threads)

    register("numba-int8", make, priority=10, summary="int8 and int4 linear layers compiled at run time by numba")
