"""Threads that work on one call together: the caller, and helpers that sleep in between.

Compiled code runs without the GIL, so Python's own threads will do. Everybody claims pieces of the work from one
counter until none is left (`jit.claim`), so cores finish together also when one is slower or has another program on
it. A helper that has not woken up by then is not waited for: when another program holds its core, the others have
done its share. numba's parallel loops wait for every thread to wake, and the caller sleeps meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


class Team:
    """At most `threads` threads, of which the caller is one. Several callers may come at once, also after a fork."""

    def __init__(self, threads: int) -> None:
        self.threads = max(threads, 1)
        self._helpers = ThreadPoolExecutor(self.threads - 1, "dllm-numba") if threads > 1 else None

    def run(self, threads: int, work: Callable[..., None], first: int, stop: int, *arguments: Any) -> None:
        """work(claims, *arguments) on up to `threads` threads. claims is int64 [next piece, stop], shared by them."""
        shared = (np.array([first, stop]), *arguments)
        helpers = min(threads, self.threads) - 1
        started = [self._helpers.submit(work, *shared) for _ in range(helpers)] if self._helpers else []
        try:
            work(*shared)
        finally:
            for helper in started:
                if not helper.cancel():
                    helper.result()
