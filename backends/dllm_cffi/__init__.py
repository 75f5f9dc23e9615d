"""Backend "cffi-simd": C kernels with intrinsics, the row of instruction sets chosen at run time."""

from __future__ import annotations

from collections.abc import Callable

from dllm_core import hookimpl


@hookimpl
def dllm_register_backends(register: Callable[..., None]) -> None:
    def make(threads: int):  # numpy and the native module are imported only when the backend is asked for
        from dllm_core.errors import BackendUnavailable

        try:
            from .backend import CffiBackend
        except ImportError as error:
            raise BackendUnavailable(f"the native module cannot be imported: {error}", "reinstall dllm") from error
        return CffiBackend(threads)

    register("cffi-simd", make, priority=20, summary="C kernels: AVX512-VNNI, AVX-VNNI, AVX2, NEON or portable")
