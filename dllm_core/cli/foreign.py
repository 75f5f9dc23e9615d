"""Verbs of plugins: hook `dllm_register_commands`, called plugin by plugin so that one fault stays one fault."""

from __future__ import annotations

import click

from ..plugins import Registry, load_registry


def load_commands(registry: Registry | None = None) -> tuple[dict[str, click.Command], dict[str, str], dict[str, str]]:
    """(command by verb, plugin by verb, error by plugin). A verb registered twice is the second plugin's error."""
    registry = registry or load_registry()
    manager = registry.manager
    commands: dict[str, click.Command] = {}
    owners: dict[str, str] = {}
    errors: dict[str, str] = {}
    everyone = manager.get_plugins()
    for name, plugin in manager.list_name_plugin():
        staged = click.Group(name)
        try:
            manager.subset_hook_caller("dllm_register_commands", everyone - {plugin})(cli=staged)
            taken = sorted(set(staged.commands) & set(commands))
            if taken:
                raise ValueError(f"command {taken[0]} is already registered by plugin {owners[taken[0]]}")
        except Exception as error:  # a plugin is somebody else's code: whatever it raises is reported
            errors[name] = f"{type(error).__name__}: {error}"
            continue
        commands.update(staged.commands)
        owners.update(dict.fromkeys(staged.commands, name))
    return commands, owners, errors
