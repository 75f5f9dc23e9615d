"""Models to measure: random ones, folders and packed ones, whole or with their first layers only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..api import Engine, check_scheme
from ..backend import Backend
from ..checkpoint import open_folder
from ..checkpoint.packed import PackedFolder
from ..errors import UsageError
from ..models import build_model
from ..plugins import Registry
from ..resolve import resolve
from ..tokenizer import Tokenizer
from .random_folder import PREFIX, RandomFolder, cut_layers
from .step import Recorded


def open_model(
    name: str,
    backend: Backend,
    scheme: str | None,
    registry: Registry,
    layers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Any, Recorded]:
    """The prepared model and what was prepared of it."""
    folder: Any = RandomFolder(name) if name.startswith(PREFIX) else open_folder(resolve(name, registry))
    if isinstance(folder, PackedFolder):
        scheme = folder.check_scheme(scheme)
        if layers is not None:
            raise UsageError("--layers does not go with a packed model", "measure its source, or all of it")
    scheme = scheme or backend.default_scheme
    check_scheme(backend, scheme)
    source = Recorded(folder)
    return build_model(cut_layers(folder.config, layers), source, backend, scheme, registry, progress), source


def open_engine(
    name: str,
    backend: Backend,
    scheme: str | None,
    registry: Registry,
    layers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Engine, Recorded]:
    """The same as an engine that decodes."""
    model, source = open_model(name, backend, scheme, registry, layers, progress)
    path = getattr(source.source, "path", None)
    tokenizer = None if path is None else Tokenizer.from_folder(path, model.facts.vocab_size)
    return Engine(model, tokenizer, model.facts.decoding, 0.0, name, registry.strategies), source
