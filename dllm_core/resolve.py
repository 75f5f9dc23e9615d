"""From what the user calls a model to the folder that holds it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from .errors import NotFoundError, UnsupportedError, UsageError, quote
from .plugins import Registry


def resolve(reference: str, registry: Registry) -> Path:
    """The folder of the model `reference`: a catalogue name registered by a plugin, else an existing path.

    The catalogue wins: write ./tiny for a folder of that name. Nothing is ever looked up on the network. The
    folder itself is checked by `open_folder`.
    """
    if not reference.strip():
        raise UsageError("the name of the model is empty", _choices(registry))
    if reference in registry.models:
        return registry.models[reference][0]
    for path in dict.fromkeys((reference, os.path.expanduser(reference))):
        if "\0" not in path and os.path.lexists(path):
            return Path(path)
    if reference.startswith("random:"):
        raise UnsupportedError(
            f"{quote(reference)} has random weights: there is nothing to read in its answers",
            f"measure it: dllm bench step --model {reference}",
        )
    if "/" in reference or "\\" in reference:
        raise NotFoundError(
            f"{quote(reference)} is no existing folder",
            f"downloading from a hub is not part of the program yet: give the folder of a model; {_choices(registry)}",
        )
    near = [name for name in registry.models if name.startswith(f"{reference}:")]  # a variant was left out
    near = near or difflib.get_close_matches(reference, registry.models, 3, 0.5)
    did_you_mean = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise NotFoundError(f"unknown model {quote(reference)}", did_you_mean + _choices(registry))


def _choices(registry: Registry) -> str:
    names = ", ".join(sorted(registry.models)) or "none"
    return f"known models: {names}; or the path of a folder with config.json and safetensors files"
