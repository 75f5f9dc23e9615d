"""What starting costs: help and errors must not import what they do not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import clean_environment

HEAVY = {"numpy", "numba", "llvmlite", "rich", "tokenizers", "safetensors", "jinja2", "torch", "_cffi_backend"}
PROBE = """
import sys
from dllm_core.cli.main import main
code = main(sys.argv[1:])
print("MODULES", code, *sorted(sys.modules))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        [],
        *(
            [verb, "--help"]
            for verb in (
                "run",
                "fill",
                "score",
                "trace",
                "strategies",
                "check",
                "backends",
                "inspect",
                "tokenize",
                "logits",
            )
        ),
        *([verb, "--help"] for verb in ("plugins", "train")),
        ["completion", "zsh"],
        ["run"],
        ["run", "--steps", "0", "x"],
        ["run", "--stesp"],
        ["run", "--strategy", "fst", "x"],
        ["score", "x"],
        ["frob"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    modules = done.stdout.splitlines()[-1].split()
    assert modules[0] == "MODULES", done.stderr
    assert modules[1] in ("0", "2")
    loaded = set(modules[2:])
    assert not {m for m in loaded if m.split(".")[0] in HEAVY or m.endswith("._native")}
