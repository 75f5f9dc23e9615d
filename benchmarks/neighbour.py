"""One thread and two beside a neighbour: a process at nice 15 that wants a core all the time.

    python benchmarks/neighbour.py --json > docs/results/bench-neighbour.json

A linear layer of 128 rows, and a pass of 128 rows through two layers of LLaDA-8B's shape. Every round
takes one thread and all threads in turn, with the neighbour and without. Two threads beside it must not be slower than
one beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.record import quartiles, show
from benchmarks.suite.common import FAST, make_backend, normal
from benchmarks.suite.model import PASSES, forward, large
from benchmarks.suite.neighbour import busy_process
from dllm_core.api import default_threads
from dllm_core.bench.samples import timed
from dllm_core.tensors import from_array

SCHEME = "qd8-f32-qc8w"
SETTLE_S = 0.3  # the neighbour starts, the scheduler gets used to it


def linear(threads: int) -> Callable[[], object]:
    backend, x = make_backend(FAST, SCHEME, threads), normal(128, 4096)
    handle = backend.prepare_linear([from_array(normal(4096, 4096))], SCHEME)
    return lambda: backend.linear(x, handle)


def step(threads: int) -> Callable[[], object]:
    return forward(large(SCHEME, threads)[0], *PASSES["128 rows"])


def measure(work: dict[int, Callable[[], object]], rounds: int, calls: int) -> dict[tuple[int, bool], list[float]]:
    """Milliseconds by threads and by whether the neighbour ran."""
    samples: dict[tuple[int, bool], list[float]] = {(n, busy): [] for n in work for busy in (False, True)}
    for call in work.values():
        call()
    for _ in range(rounds):
        for busy in (False, True):
            neighbour = busy_process() if busy else None
            try:
                time.sleep(SETTLE_S)
                for threads, call in work.items():
                    samples[threads, busy] += [1e3 * timed(call) for _ in range(calls)]
            finally:
                if neighbour is not None:
                    neighbour.kill()
                    neighbour.wait()
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for what, make, calls in (
        ("linear 4096x4096, 128 rows", linear, 40),
        ("two layers of LLaDA-8B, 128 rows", step, 4),
    ):
        found = measure({n: make(n) for n in (1, args.threads)}, args.rounds, calls)
        rows = [
            {"what": what, "scheme": SCHEME, "threads": n}
            | quartiles("alone_ms", found[n, False])
            | quartiles("beside_ms", found[n, True])
            for n in (1, args.threads)
        ]
        results += [{**row, "beside_to_one_thread": row["beside_ms"] / rows[0]["beside_ms"]} for row in rows]
    show("neighbour", results, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
