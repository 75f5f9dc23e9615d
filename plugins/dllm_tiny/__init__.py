"""The model inside: a small LLaDA that ships in the wheel, registered under the name "tiny"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dllm_core import hookimpl


@hookimpl
def dllm_register_models(register: Callable[..., None]) -> None:
    register("tiny", Path(__file__).parent / "model", summary="3 million parameters, short exact tasks, built in")
