"""Time per forward pass without a cache, with the prefix cache and with the dual cache, interleaved in one run.

    python benchmarks/cache_ratio.py                     8 of LLaDA-8B's 32 layers, random weights
    python benchmarks/cache_ratio.py --layers 2 --small  a rehearsal of seconds

512 prompt tokens, a canvas of 128 in blocks of 32, 8 tokens a pass: every block takes one pass over all rows and three
more. The stack is the share layers/32 of LLaDA-8B, vocabulary included, so that the head keeps its proportion. All
layers hold the same random values in memory of their own. The last layer computes its output for scored rows only,
as in every decode, which weighs more in a shorter stack. Writes docs/results/cache-ratio.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dllm_core import __version__
from dllm_core.api import default_threads
from dllm_core.decoding.loop import Step, decode
from dllm_core.decoding.options import DecodeOptions
from dllm_core.models.llada import Llada
from dllm_core.plugins import load_registry
from dllm_core.sweep.run import cpu_name
from dllm_core.tensors import Tensor
from dllm_core.testing.random_model import random_checkpoint

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "cache-ratio.json"
LARGE = {"width": 4096, "heads": 32, "kv_heads": 32, "mlp": 12288, "max_length": 4096}
SMALL = {"width": 256, "heads": 4, "kv_heads": 4, "mlp": 768, "max_length": 4096}
FULL_LAYERS, FULL_VOCAB = 32, 126464
PROMPT, CANVAS, BLOCK, PER_PASS = 512, 128, 32, 8
CACHES = ("none", "prefix", "dual")


class Repeated:
    """The tensors of one layer, served for every layer."""

    def __init__(self, tensors: Any, layers: int) -> None:
        self.tensors, self.layers = tensors, layers

    def names(self) -> list[str]:
        names = self.tensors.names()
        return [
            n.replace("blocks.0.", f"blocks.{i}.")
            for i in range(self.layers)
            for n in names
            if i == 0 or "blocks.0." in n
        ]

    def tensor(self, name: str) -> Tensor:
        head, dot, rest = name.partition("blocks.")
        return self.tensors.tensor(f"{head}blocks.0.{rest.partition('.')[2]}" if dot else name)


def build(args: argparse.Namespace) -> Llada:
    """The random model, prepared by the backend; only one layer ever exists in float32."""
    backend = load_registry().backend(args.backend, args.threads or default_threads())
    vocab = max(FULL_VOCAB * args.layers // FULL_LAYERS, 64)
    config, tensors = random_checkpoint(layers=1, vocab=vocab, **(SMALL if args.small else LARGE))
    config["n_layers"] = args.layers
    return Llada(config, Repeated(tensors, args.layers), backend, args.scheme or backend.default_scheme)


def measure(model: Llada, rounds: int) -> dict[str, list[Step]]:
    """All steps of `rounds` decodes a cache; the caches take turns, pass by pass."""
    prompt = np.random.default_rng(0).integers(0, model.facts.vocab_size - 2, PROMPT).tolist()
    options = {
        cache: DecodeOptions(max_tokens=CANVAS, block_length=BLOCK, steps=CANVAS // PER_PASS, cache=cache)
        for cache in CACHES
    }
    for given in options.values():  # untimed: scratch is allocated
        next(decode(model, [prompt], given))
    steps: dict[str, list[Step]] = {cache: [] for cache in CACHES}
    for i in range(rounds):
        runs = {cache: decode(model, [prompt], given) for cache, given in options.items()}
        for number, taken in enumerate(zip(*runs.values(), strict=True), 1):
            for cache, step in zip(CACHES, taken, strict=True):
                steps[cache].append(step)
            print(f"round {i + 1}/{rounds}, pass {number}/{CANVAS // PER_PASS}", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    return steps


def kinds(found: list[Step]) -> list[dict[str, Any]]:
    """The passes of a cache by their number of rows, with the median of each kind: other work disturbs single ones."""
    times: dict[int, list[float]] = {}
    for step in found:
        times.setdefault(step.rows_run, []).append(1e3 * step.seconds)
    return [
        {"rows": n, "passes": len(ms), "ms": statistics.median(ms)} for n, ms in sorted(times.items(), reverse=True)
    ]


def summary(steps: dict[str, list[Step]]) -> list[dict[str, Any]]:
    """Rows and milliseconds of a pass, means over the kinds of pass, and how many times less than without a cache."""
    result: list[dict[str, Any]] = []
    for cache, found in steps.items():
        cell: dict[str, Any] = {"cache": cache, "passes": len(found), "kinds": kinds(found)}
        for key in ("rows", "ms"):
            cell[key] = sum(kind["passes"] * kind[key] for kind in cell["kinds"]) / len(found)
            cell[f"{key}_ratio"] = (result[0] if result else cell)[key] / cell[key]
        result.append(cell)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8, help="of 32 (default 8)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--backend", default="cffi-simd")
    parser.add_argument("--scheme", help="the backend's default if not given")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--small", action="store_true", help="a narrow stack, to rehearse")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    model = build(args)
    caches = summary(measure(model, args.rounds))
    result = {
        "schema": 1,
        "kind": "cache-ratio",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dllm": __version__,
        "cpu": cpu_name(),
        "backend": model.backend.name,
        "isa": model.backend.isa,
        "scheme": model.scheme,
        "threads": model.backend.threads,
        "layers": args.layers,
        "full_layers": FULL_LAYERS,
        "width": model.facts.width,
        "vocab": model.facts.vocab_size,
        "prompt": PROMPT,
        "canvas": CANVAS,
        "block": BLOCK,
        "tokens_per_pass": PER_PASS,
        "rounds": args.rounds,
        "caches": caches,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for c in caches:
        print(f"{c['cache']:7} {c['rows']:6.1f} rows {c['ms']:9.1f} ms", end="  ")
        print(f"rows {c['rows_ratio']:.2f}x  time {c['ms_ratio']:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
