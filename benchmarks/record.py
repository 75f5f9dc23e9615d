"""What the result files of the scripts in this folder have in common."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dllm_core import __version__
from dllm_core.sweep.run import cpu_name


def quartiles(name: str, samples: Sequence[float]) -> dict[str, float]:
    """NAME (the median), NAME_p25, NAME_p75."""
    first, middle, third = (float(q) for q in np.percentile(samples, [25, 50, 75]))
    return {name: middle, f"{name}_p25": first, f"{name}_p75": third}


def document(bench: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """A result file: `bench` is the kind of measurement, which names the table that shows it."""
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return {"schema": 1, "bench": bench, "date": when, "dllm": __version__, "cpu": cpu_name(), "results": results}


def show(bench: str, results: list[dict[str, Any]], as_json: bool) -> None:
    """To standard output: the result file, or a line per result."""
    if as_json:
        json.dump(document(bench, results), sys.stdout, indent=1)
        print()
        return
    for row in results:
        print(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
