"""Model families. `build_model` picks one by the `model_type` of config.json."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError, quote

if TYPE_CHECKING:
    from ..backend import Backend
    from ..plugins import Registry
    from .base import Model, Tensors

BUILTIN = ("llada", "Dream")


def family(config: Mapping[str, Any], registry: Registry | None = None) -> str:
    """The `model_type` of `config`; UnsupportedError lists the known ones unless it is one of them."""
    known = sorted({*BUILTIN, *(registry.families if registry else ())})
    name = config.get("model_type")
    if isinstance(name, str) and name in known:
        return name
    hint = f"known families: {', '.join(known)}"
    if name is None:
        raise UnsupportedError("config.json lacks model_type", hint)
    near = difflib.get_close_matches(name, known, 1) if isinstance(name, str) else []
    did_you_mean = f"did you mean {near[0]!r}? " if near else ""
    raise UnsupportedError(f"config.json: model_type={quote(name)} is not a known family", did_you_mean + hint)


def build_model(
    config: Mapping[str, Any],
    tensors: Tensors,
    backend: Backend,
    scheme: str,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Model:
    """Read, pack and return the model; `progress(done, total)` is called after every layer.

    UnsupportedError for an unknown family, a config key that cannot be honoured or a scheme that `backend` lacks;
    CheckpointError for missing tensors and wrong shapes.
    """
    name = family(config, registry)
    if scheme not in backend.schemes:
        raise UnsupportedError(
            f"backend {backend.name!r} has no scheme {quote(scheme)}", f"choose one of: {', '.join(backend.schemes)}"
        )
    if name == "llada":
        from .llada import Llada

        return Llada(config, tensors, backend, scheme, progress)
    if name == "Dream":
        from .dream import Dream

        return Dream(config, tensors, backend, scheme, progress)
    assert registry is not None  # family() found the name there
    return registry.families[name](config, tensors, backend, scheme)
