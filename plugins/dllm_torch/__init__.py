"""Backend "torch": the operators in PyTorch, on the CPU or a CUDA device. torch is imported only inside the factory."""

from __future__ import annotations

import os
from collections.abc import Callable

from dllm_core import hookimpl


@hookimpl
def dllm_register_backends(register: Callable[..., None]) -> None:
    def make(threads: int):
        from dllm_core.errors import BackendUnavailable

        # Asks MKL, before it is loaded, for sums that do not depend on where a buffer lies
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise BackendUnavailable(f"torch cannot be imported: {error}", 'pip install "dllm[torch]"') from error
        from .backend import TorchBackend

        return TorchBackend(threads)

    # Below the reference: a neighbour to compare with, which nobody gets without asking.
    register("torch", make, priority=-20, summary="PyTorch, on the CPU or a CUDA device (extra: torch)")
