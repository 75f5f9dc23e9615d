"""Whole processes, from the call to the end: what a user waits for at a prompt. Medians, the commands taking turns.

python benchmarks/processes.py --json > docs/results/bench-process.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.record import quartiles, show
from dllm_core.bench.samples import timed

DLLM = str(Path(sysconfig.get_path("scripts")) / "dllm")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import dllm_core'": [sys.executable, "-c", "import dllm_core"],
    "dllm --version": [DLLM, "--version"],
    "dllm run 'What is 217 + 384?'": [DLLM, "run", "What is 217 + 384?"],
    "dllm run --strategy fast 'What is 217 + 384?'": [DLLM, "run", "--strategy", "fast", "What is 217 + 384?"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    calls = {
        name: partial(subprocess.run, command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for name, command in COMMANDS.items()
    }
    for call in calls.values():  # untimed: files come into memory, bytecode is written
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            seconds[name].append(timed(call))
    show(
        "process", [{"command": name, "rounds": len(s), **quartiles("s", s)} for name, s in seconds.items()], args.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
