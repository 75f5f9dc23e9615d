"""One linear layer by itself: quantisation of the rows, product and epilogue, at several numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backend import Backend, Handle
from ..errors import DllmError
from ..packing import Packed, aligned, packs
from ..testing.case import compare
from ..testing.linear_case import LinearCase
from .limits import Limits, l3_bytes
from .random_folder import random_matrix
from .samples import Measured, timed

COPIES = 1024  # at most
ROUND_S = 0.02  # of calls between two looks at the machine's limits
VALIDATED = 160  # outputs of a layer that is compared with the reference


def validate(backend: Backend, scheme: str, k: int, rows: int) -> None:
    """DllmError unless a layer of `k` inputs agrees with the reference: a wrong kernel is never timed."""
    case = LinearCase(rows, k, (VALIDATED,), scheme)
    problems = compare(case, case.run(backend)).problems
    if problems:
        raise DllmError(f"{backend.name} {backend.isa} is wrong and not timed: {case.name}: {'; '.join(problems)}")


def bench_kernel(
    backend: Backend,
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    schemes: Sequence[str],
    repeats: int = 5,
    warm: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Limits, list[dict[str, Any]]]:
    """Time `linear` for weights [n, k] of `shapes`. Cold weights rotate through more memory than the last cache holds.

    Every repetition takes all numbers of rows in turn, and the limits before each. Returns the limits and one result
    per scheme, shape and number of rows.
    """
    limits = Limits(backend.threads, backend.isa)
    results = []
    for scheme in schemes:
        for n, k in shapes:
            for count in rows:
                validate(backend, scheme, k, count)
            say(f"validated {scheme} {n}x{k} at {', '.join(map(str, rows))} rows against the reference")
            results += _one_shape(backend, limits, scheme, (n, k), rows, repeats, warm)
    return limits, results


def _one_shape(
    backend: Backend, limits: Limits, scheme: str, shape: tuple[int, int], rows: Sequence[int], repeats: int, warm: bool
) -> list[dict[str, Any]]:
    n, k = shape
    handles = copies(backend, scheme, n, k, warm)
    x, out = (aligned((max(rows), width), np.float32) for width in (k, n))  # as backends allocate between layers
    x[:] = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    measured = {count: Measured(limits.kind_of(scheme)) for count in rows}
    turn = 0
    for _ in range(repeats):
        for count in rows:
            limit = limits.sample(limits.kind_of(scheme))
            seconds: list[float] = []
            while len(seconds) < 2 or sum(seconds) < ROUND_S:
                call = partial(backend.linear, x[:count], handles[turn % len(handles)], out[:count])
                seconds.append(timed(call))
                turn += 1
            measured[count].add(limit, seconds)
    size = backend.linear_bytes(handles[0])
    who = {"backend": backend.name, "isa": backend.isa, "threads": backend.threads, "scheme": scheme}
    facts = {**who, "shape": f"{n}x{k}", "warm": warm, "copies": len(handles), "bytes": size}
    return [{**facts, "rows": m, **measured[m].report(2 * m * n * k, size)} for m in rows]


def copies(backend: Backend, scheme: str, n: int, k: int, warm: bool) -> list[Handle]:
    """One packed weight, or if not `warm` enough copies of it to fill the last cache four times."""
    weight = random_matrix(n, k)
    first = backend.prepare_linear([weight], scheme)
    count = 1 if warm else min(max(2, -(-4 * l3_bytes() // backend.linear_bytes(first))), COPIES)
    if not packs(backend):
        return [first, *(backend.prepare_linear([weight], scheme) for _ in range(count - 1))]
    arrays = backend.pack(first)
    meta = Packed(backend.layout(scheme), n, k)
    return [first, *(backend.unpack_file(_copy(arrays, meta), meta) for _ in range(count - 1))]


def _copy(arrays: dict[str, Any], meta: Packed) -> dict[str, Any]:
    found = {}
    for name, (dtype, shape) in meta.layout.arrays(meta.n, meta.k, False).items():
        found[name] = aligned(shape, dtype)
        found[name].reshape(-1).view(np.uint8)[:] = arrays[name].reshape(-1).view(np.uint8)
    return found
