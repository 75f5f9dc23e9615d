"""`dllm backends`: what can run here, why the rest cannot, and which operators each backend brings itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import DllmError
from .options import json_option, thread_count, threads_option
from .output import write_json, write_table

if TYPE_CHECKING:
    from ..backend import Backend
    from ..plugins import BackendEntry, Registry

OWN, REFERENCE, COMPOSITE = "own", "numpy", "composite"
STYLES = {OWN: "green", REFERENCE: "", COMPOSITE: "dim"}
RUNS = {"default": "bold green", "yes": "green", "no": "red"}


@click.command(short_help="List the backends and what they can do.")
@threads_option
@json_option
def command(threads: int | None, as_json: bool) -> None:
    """List the backends: availability or the reason, instruction set, schemes, and who implements each operator.

    An operator is the backend's own, or inherited: from numpy (the reference), or as a composite, which is written
    with other operators and so runs on the backend's own ones.
    """
    from ..plugins import load_registry

    found = describe(load_registry(), thread_count(threads))
    if as_json:
        write_json({"backends": found})
        return
    _show(found)


def _show(found: list[dict[str, Any]]) -> None:
    """Two tables: the backends, and who implements each operator of those that run."""
    from rich.text import Text

    rows = []
    for entry in found:
        runs = "default" if entry["default"] else "yes" if entry["available"] else "no"
        others = [isa for isa in entry["isa_rows"] if isa != entry["isa"]]
        isas = "\n".join([entry["isa"] or "", *(f"({isa})" for isa in others)])
        schemes = "\n".join(entry["schemes"])
        rows.append((entry["name"], Text(runs, RUNS[runs]), isas, schemes, entry["summary"]))
    write_table(["backend", "runs", "isa", "schemes", "summary"], rows)
    for entry in found:
        if not entry["available"]:
            click.echo(f"\n{entry['name']} does not run here: {entry['reason']}")
    available = [e for e in found if e["available"]]
    if available:
        click.echo()
        table = [
            [operator, *(Text(e["operators"][operator], STYLES[e["operators"][operator]]) for e in available)]
            for operator in available[0]["operators"]
        ]
        write_table(["operator", *(e["name"] for e in available)], table)


def describe(registry: Registry, threads: int) -> list[dict[str, Any]]:
    """One entry a backend, best first."""
    entries = sorted(registry.backends.values(), key=lambda e: (-e.priority, e.name))
    found = [_describe(entry, registry, threads) for entry in entries]
    best = next((entry for entry in found if entry["available"]), None)
    for entry in found:
        entry["default"] = entry is best
    return found


def _describe(entry: BackendEntry, registry: Registry, threads: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": entry.name,
        "plugin": entry.plugin,
        "summary": entry.summary,
        "priority": entry.priority,
        "available": False,
        "reason": None,
        "isa": None,
        "isa_rows": [],
        "threads": None,
        "schemes": [],
        "default_scheme": None,
        "operators": {},
    }
    try:
        backend = registry.backend(entry.name, threads)
    except DllmError as error:
        return {**facts, "reason": "; ".join(part for part in (error.message, error.hint) if part)}
    except Exception as error:  # a plugin is somebody else's code: whatever it raises is the reason
        return {**facts, "reason": f"{type(error).__name__}: {error}"}
    return {
        **facts,
        "available": True,
        "isa": backend.isa,
        "isa_rows": isa_rows(backend),
        "threads": backend.threads,
        "schemes": list(backend.schemes),
        "default_scheme": backend.default_scheme,
        "operators": operators(backend),
    }


def isa_rows(backend: Backend) -> list[str]:
    """The instruction sets that can run here, best first: of a backend that has several (`isa_rows`), else its one."""
    several = getattr(backend, "isa_rows", None)
    return [backend.isa] if several is None else list(several())


def operators(backend: Backend) -> dict[str, str]:
    """Operator -> who implements it, by the class in the backend's ancestry that defines it."""
    from ..backend import Backend

    origin = {"dllm_core.backend": COMPOSITE, "dllm_numpy.backend": REFERENCE, type(backend).__module__: OWN}
    names = [n for n, member in vars(Backend).items() if callable(member) and not n.startswith("_")]
    defining = {name: next(c for c in type(backend).__mro__ if name in vars(c)) for name in names}
    return {name: origin.get(c.__module__, OWN) for name, c in defining.items()}
