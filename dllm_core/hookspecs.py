"""The plugin door. A plugin is a package with an entry point in group "dllm" that implements any of these."""

from __future__ import annotations

from collections.abc import Callable

import pluggy

hookspec = pluggy.HookspecMarker("dllm")


@hookspec
def dllm_register_backends(register: Callable[..., None]) -> None:
    """Call `register(name, factory, priority=0, summary="")` for every backend.

    `factory(threads: int) -> Backend` imports what it needs and raises `BackendUnavailable` with the reason when
    it cannot run here. The available backend of highest priority is the default.
    """


@hookspec
def dllm_register_models(register: Callable[..., None]) -> None:
    """Call `register(name, folder, summary="")` for every model that ships as a folder of files."""


@hookspec
def dllm_register_families(register: Callable[..., None]) -> None:
    """Call `register(model_type, build)` for every `model_type` of config.json.

    `build(config: dict, tensors, backend, scheme) -> Model`; see `dllm_core.models`.
    """


@hookspec
def dllm_register_strategies(register: Callable[..., None]) -> None:
    """Call `register(name, options, summary="")` for every named set of decoding options.

    `options` maps fields of `dllm_core.decoding.options.DecodeOptions` to values.
    """


@hookspec
def dllm_register_commands(cli) -> None:
    """Add click commands to the group `cli`."""
