"""dllm: masked diffusion language models on ordinary CPUs.

`load(name)` returns a model with `.generate()` and `.stream()`. Importing the package is cheap: numpy and the
backends are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("dllm")

if TYPE_CHECKING:
    from .api import Engine, Generation, load

__all__ = ["Engine", "Generation", "__version__", "hookimpl", "load"]


def __getattr__(name: str) -> Any:
    if name in ("Engine", "Generation", "load"):
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
