"""Opening a packed LLaDA-8B, and the peak memory of using it: random weights of that shape, packed into a file.

    python benchmarks/packed_open.py --json > docs/results/bench-packed.json
    python benchmarks/packed_open.py --layers 2      a rehearsal of seconds

Needs 9 GB of disk under --folder (a temporary folder if not given), which it leaves as it was, and memory to hold the
file in the page cache. Every sample is a process of its own, timed from its call: interpreter and imports, mapping the
file, the first forward pass over 8 rows, then passes over 128 rows with the head on 32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.record import quartiles, show
from dllm_core.api import default_threads, peak_rss_bytes
from dllm_core.bench.random_folder import PREFIX, RandomFolder, cut_layers
from dllm_core.checkpoint import convert as conversion
from dllm_core.plugins import load_registry
from dllm_core.tensors import Tensor

BACKEND = "cffi-simd"


class Source(RandomFolder):
    """A random model as `convert` wants a folder: its embedding and norms have entries."""

    def __init__(self, reference: str, path: Path, layers: int | None) -> None:
        super().__init__(reference)
        self.config = cut_layers(self.config, layers)
        self.path, self.shards, self.total_bytes = path, (), 0
        (path / "config.json").write_text(json.dumps(self.config))

    def tensor(self, name: str) -> Tensor:
        width = self.config["d_model"]
        return self.make(name, (self.config["embedding_size"], width) if name.endswith("wte.weight") else (width,))

    def entry(self, name: str) -> Any:
        tensor = self.tensor(name)
        return SimpleNamespace(dtype=tensor.dtype, shape=tensor.shape, start=0, stop=tensor.raw.size * 2)


def pack(target: Path, scheme: str, layers: int | None) -> conversion.Converted:
    with TemporaryDirectory() as folder:
        source = Source(f"{PREFIX}llada-8b", Path(folder), layers)
        with mock.patch.object(conversion, "open_folder", return_value=source):
            return conversion.convert(Path(folder), target, load_registry().backend(BACKEND, default_threads()), scheme)


def child(folder: Path, called: float) -> None:
    """One process: seconds since it was called, at every stage, and its peak memory, as a JSON line."""
    from benchmarks.suite.model import forward
    from dllm_core.bench.models import open_model

    registry = load_registry()
    backend = registry.backend(BACKEND, default_threads())
    stages = {"imports_s": time.monotonic() - called}
    model, source = open_model(str(folder), backend, None, registry)
    stages["open_s"] = time.monotonic() - called
    forward(model, 8, 0, 8)()
    stages["first_s"] = time.monotonic() - called
    step = forward(model, 128, 0, 32)
    for _ in range(2):
        step()
    print(json.dumps({**stages, "peak_rss_bytes": peak_rss_bytes(), "weight_bytes": source.bytes}))


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    found = []
    for i in range(rounds + 1):
        command = [sys.executable, __file__, "--child", str(folder), "--called", str(time.monotonic())]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(out))
        print(f"process {i}/{rounds}: first pass after {found[-1]['first_s']:.2f} s", file=sys.stderr)
    return found[1:]  # the first one brings the file into the page cache


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", default="qd8-f32-qc8w")
    parser.add_argument("--layers", type=int, help="of 32; all if not given")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where the packed file is put meanwhile")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--called", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.called)
        return 0
    with TemporaryDirectory(dir=args.folder) as root:
        began = time.perf_counter()
        done = pack(Path(root) / "packed", args.scheme, args.layers)
        convert_s = time.perf_counter() - began
        found = measure(Path(root) / "packed", args.rounds)
    peak, weights = max(f["peak_rss_bytes"] for f in found), found[0]["weight_bytes"]
    model = f"random:llada-8b, {args.layers or 32} layers"
    result = {
        "model": model,
        "backend": BACKEND,
        "scheme": args.scheme,
        "threads": default_threads(),
        "rounds": args.rounds,
    }
    result |= {"convert_s": convert_s, "file_bytes": done.bytes, "weight_bytes": weights, "peak_rss_bytes": peak}
    result["beyond_weights"] = peak / weights - 1
    for stage in ("imports_s", "open_s", "first_s"):
        result |= quartiles(stage, [f[stage] for f in found])
    show("packed", [result], args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
