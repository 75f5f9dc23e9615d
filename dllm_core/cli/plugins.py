"""`dllm plugins`: every plugin found, what it brings, and why a broken one is broken."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..plugins import Registry, load_registry
from .foreign import load_commands
from .options import json_option
from .output import write_json, write_table

KINDS = {
    "backends": "backend",
    "models": "model",
    "families": "family",
    "strategies": "strategy",
}  # hooks, and what one entry is called


@click.command(short_help="List the plugins.")
@json_option
def command(as_json: bool) -> None:
    """List the plugins, what each registers, and the error of a broken one."""
    plugins = describe(load_registry())
    if as_json:
        write_json({"plugins": plugins})
        return
    columns = ["plugin", "module", "version", "brings"]
    write_table(columns, [(p["name"], p["module"], p["version"], _brings(p)) for p in plugins])


def describe(registry: Registry) -> list[dict[str, Any]]:
    """One entry a plugin: the fields of PluginStatus, and the names of what it registered."""
    _, owners, errors = load_commands(registry)
    found = []
    for status in registry.plugins:
        facts = asdict(status)
        facts["error"] = status.error or errors.get(status.name)
        for kind in KINDS:
            facts[kind] = _registered(registry, status.name, kind)
        facts["commands"] = sorted(verb for verb, owner in owners.items() if owner == status.name)
        found.append(facts)
    return found


def _registered(registry: Registry, plugin: str, kind: str) -> list[str]:
    """The names that one plugin registers through the hook of `kind`."""
    if not registry.manager.has_plugin(plugin):
        return []
    others = registry.manager.get_plugins() - {registry.manager.get_plugin(plugin)}
    names: list[str] = []
    hook = registry.manager.subset_hook_caller(f"dllm_register_{kind}", others)
    hook(register=lambda name, *args, **kwargs: names.append(name))
    return sorted(names)


def _brings(plugin: dict[str, Any]) -> Any:
    from rich.text import Text

    if plugin["error"] is not None:
        return Text(f"broken: {plugin['error']}", style="red")
    words = {**KINDS, "commands": "dllm"}
    return ", ".join(f"{word} {name}" for kind, word in words.items() for name in plugin[kind])
