"""Finds plugins and collects what they register. A broken plugin is reported and never fatal."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from . import hookspecs
from .decoding.strategies import STRATEGIES, Strategy
from .errors import BackendUnavailable, DllmError, NotFoundError, UsageError

if TYPE_CHECKING:
    from .backend import Backend


KINDS = ("backends", "models", "families", "strategies")


@dataclass(frozen=True)
class PluginStatus:
    """One entry point: `error` is None when it loaded."""

    name: str
    module: str
    version: str
    error: str | None


@dataclass(frozen=True)
class BackendEntry:
    name: str
    factory: Callable[[int], Backend]
    priority: int
    summary: str
    plugin: str


@dataclass
class Registry:
    """Everything that plugins registered."""

    plugins: list[PluginStatus] = field(default_factory=list)
    backends: dict[str, BackendEntry] = field(default_factory=dict)
    models: dict[str, tuple[Path, str]] = field(default_factory=dict)
    families: dict[str, Callable[..., Any]] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    manager: pluggy.PluginManager = field(default_factory=lambda: pluggy.PluginManager("dllm"))

    def backend(self, name: str, threads: int) -> Backend:
        """The backend called `name`, never another one."""
        if name not in self.backends:
            near = difflib.get_close_matches(name, self.backends, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            broken = [status.name for status in self.plugins if status.error is not None]
            hint += f"broken plugins, see dllm plugins: {', '.join(broken)}; " if broken else ""
            raise UsageError(f"unknown backend {name!r}", f"{hint}known backends: {', '.join(sorted(self.backends))}")
        return self.backends[name].factory(threads)

    def best_backend(self, threads: int) -> Backend:
        """The available backend of highest priority."""
        reasons = []
        for entry in sorted(self.backends.values(), key=lambda e: -e.priority):
            try:
                return entry.factory(threads)
            except BackendUnavailable as error:
                reasons.append(f"{entry.name}: {error.message}")
            except DllmError:
                raise  # a setting of the user's, such as a forced instruction set, is not passed over
            except Exception as error:  # a plugin is somebody else's code: whatever it raises is the reason
                reasons.append(f"{entry.name}: {type(error).__name__}: {error}")
        raise NotFoundError("no backend can run here", "; ".join(reasons))


def load_registry() -> Registry:
    """Load every entry point of group "dllm", one by one and guarded, and let each register what it has."""
    registry = Registry(strategies=dict(STRATEGIES))
    registry.manager.add_hookspecs(hookspecs)
    for point in sorted(entry_points(group="dllm"), key=_order):
        registry.plugins.append(_load(registry, point))
    return registry


def _order(point: EntryPoint) -> tuple[bool, str]:
    """Our own first, so that nobody can take their names."""
    return point.dist is None or point.dist.name != "dllm", point.name


def _load(registry: Registry, point: EntryPoint) -> PluginStatus:
    version = point.dist.version if point.dist else "?"
    try:
        module = importlib.import_module(point.module)
        manager = pluggy.PluginManager("dllm")  # a manager of its own: one plugin's fault cannot reach another
        manager.add_hookspecs(hookspecs)
        manager.register(module, point.name)
        manager.check_pending()
        staged = Registry()
        manager.hook.dllm_register_backends(register=_backend_register(staged, point.name))
        manager.hook.dllm_register_models(register=_model_register(staged))
        manager.hook.dllm_register_families(register=staged.families.__setitem__)
        manager.hook.dllm_register_strategies(register=_strategy_register(staged))
        _refuse_duplicates(registry, staged)
        registry.manager.register(module, point.name)
        for kind in KINDS:
            getattr(registry, kind).update(getattr(staged, kind))
    except (Exception, SystemExit) as error:  # a plugin is somebody else's code: whatever it raises is reported
        return PluginStatus(point.name, point.module, version, f"{type(error).__name__}: {error}")
    return PluginStatus(point.name, point.module, version, None)


def _refuse_duplicates(registry: Registry, staged: Registry) -> None:
    """All or nothing: a plugin that reuses one name registers none."""
    for kind in KINDS:
        taken = sorted(set(getattr(registry, kind)) & set(getattr(staged, kind)))
        if taken:
            raise ValueError(f"{kind} {', '.join(taken)} already registered by another plugin")


def _backend_register(staged: Registry, plugin: str) -> Callable[..., None]:
    def register(name: str, factory: Callable[[int], Backend], priority: int = 0, summary: str = "") -> None:
        staged.backends[name] = BackendEntry(name, factory, priority, summary, plugin)

    return register


def _model_register(staged: Registry) -> Callable[..., None]:
    def register(name: str, folder: str | Path, summary: str = "") -> None:
        staged.models[name] = (Path(folder), summary)

    return register


def _strategy_register(staged: Registry) -> Callable[..., None]:
    def register(name: str, options: Mapping[str, Any], summary: str = "") -> None:
        staged.strategies[name] = Strategy(dict(options), summary)

    return register
