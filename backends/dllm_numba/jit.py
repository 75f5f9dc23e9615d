"""How this package compiles: options, the cache on disk, the thread pool.

Every function is compiled at its first call and stored by numba in `NUMBA_CACHE_DIR`, else next to its source, else
in the user's cache directory; where none of them can be written it is compiled in every process. The cache notices
a change of the function's own file and of the CPU, but not of a file it imports from, so compiled code calls only
compiled code of its own file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba

# One parallel region at a time: numba's "workqueue" threads end the process when two callers meet.
_region = threading.Lock()


def compiled(function: Callable[..., Any], parallel: bool = False) -> Callable[..., Any]:
    """`function` compiled without the GIL, with numpy's division rules and without reordering of float sums."""
    options = {"nogil": True, "error_model": "numpy", "parallel": parallel}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no directory it may write to
        return numba.njit(**options)(function)


def compiled_parallel(function: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, with `numba.prange` loops spread over threads. Call it inside `thread_count` only."""
    return compiled(function, parallel=True)


def start_threads(wanted: int) -> int:
    """Start numba's pool and return how many threads of it may be used: `wanted`, or all there are if fewer.

    numba fixes the size of its pool at start-up (`NUMBA_NUM_THREADS`, the number of CPUs by default). Unless the
    user chose a threading layer, take "workqueue": it is always there, and its threads sleep while they wait, where
    those of OpenMP spin and stall for milliseconds when another process wants their core.
    """
    if str(numba.config.THREADING_LAYER).lower() == "default":
        numba.config.THREADING_LAYER = "workqueue"
    numba.get_num_threads()
    return max(1, min(wanted, numba.config.NUMBA_NUM_THREADS))


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Run parallel regions on `threads` threads, alone, and give the caller's setting back."""
    with _region:
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)
