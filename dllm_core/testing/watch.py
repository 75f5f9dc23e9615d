"""Tells an operator that writes where it must not: into its inputs. (Canaries around outputs are `case.Guarded`.)"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..backend import Backend
from .case import Array, Case, Difference, compare

IN_PLACE = {"rope": "x", "add_": "x"}  # operators that change an argument; the others write to `out` and `kv` alone


class Watched:
    """A backend whose operators raise ValueError if they change an array that is no output of theirs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        operator = vars(Backend).get(name)
        return self._watched(name, found, operator) if inspect.isfunction(operator) else found

    def _watched(self, name: str, found: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(operator)
        outputs = ("self", "out", "kv", IN_PLACE.get(name))

        def call(*args: Any, **named: Any) -> Any:
            given = signature.bind(self, *args, **named).arguments
            inputs = [(key, array) for key, value in given.items() if key not in outputs for array in _arrays(value)]
            before = [(key, array, array.copy()) for key, array in inputs]
            result = found(*args, **named)
            for key, array, copy in before:
                if not np.array_equal(array, copy, equal_nan=array.dtype.kind == "f"):
                    raise ValueError(f"{name} changed its input {key}")
            return result

        return call


def _arrays(value: Any) -> Iterator[Array]:
    """The arrays of an argument: itself, or the fields of a `Rows`, a `LayerWeights`, a stored tensor."""
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for item in fields(value):
            if isinstance(found := getattr(value, item.name), np.ndarray):
                yield found
    elif isinstance(value, list | tuple):
        for found in value:
            yield from _arrays(found)


def judge(case: Case, backend: Backend) -> Difference:
    """The case on `backend` beside the reference, with an eye on its inputs."""
    return compare(case, case.run(Watched(backend)))  # type: ignore[arg-type]
