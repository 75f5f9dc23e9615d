"""The plugin door. A plugin is a package with an entry point in group "dllm" that implements any of these.

Mark functions of the module that the entry point names with `dllm_core.hookimpl`. Hooks run once, at start-up, so
they are quick: import what is slow inside the factory. Whatever a hook raises is reported by `dllm plugins`; the
program goes on without that plugin. A name that another plugin has taken is such a fault, and then nothing of the
plugin counts.
"""

from __future__ import annotations

from collections.abc import Callable

import pluggy

hookspec = pluggy.HookspecMarker("dllm")


@hookspec
def dllm_register_backends(register: Callable[..., None]) -> None:
    """Call `register(name, factory, priority=0, summary="")` for every backend.

    `factory(threads: int) -> Backend` imports what it needs and raises `dllm_core.errors.BackendUnavailable` with the
    reason when it cannot run here; threads is at least 1 and a limit. The available backend of highest priority is
    the default; `--backend NAME` takes that one or fails. Ours have 0 (numpy), 10 (numba-int8) and 20 (cffi-simd).
    """


@hookspec
def dllm_register_models(register: Callable[..., None]) -> None:
    """Call `register(name, folder, summary="")` for every model that ships as a folder of files.

    `folder` (a path) holds what a checkpoint holds: config.json, safetensors, tokenizer files. `-m NAME` finds it.
    """


@hookspec
def dllm_register_families(register: Callable[..., None]) -> None:
    """Call `register(model_type, build)` for every `model_type` of config.json.

    `build(config, tensors, backend, scheme) -> Model`: config is the mapping of config.json, tensors a
    `dllm_core.models.base.Tensors` (named arrays, read lazily), scheme a name that the backend has, the result a
    `dllm_core.models.base.Model`. Refuse what cannot be honoured with `UnsupportedError`, wrong files with
    `CheckpointError`. `dllm_core/models/llada.py` is an example.
    """


@hookspec
def dllm_register_strategies(register: Callable[..., None]) -> None:
    """Call `register(name, options, summary="")` for every named set of decoding options.

    `options` maps fields of `dllm_core.decoding.options.DecodeOptions` to values; explicit options win over them.
    `--strategy NAME` and `dllm strategies` find it.
    """


@hookspec
def dllm_register_commands(cli) -> None:
    """Add click commands to the group `cli` (a `click.Group`): `@cli.command()`, or `cli.add_command`.

    Runs when the command line starts, not in the Python API. Raise `dllm_core.errors` classes: the command line
    shows them as it shows its own.
    """
