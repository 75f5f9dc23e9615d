"""What four bits cost, by rule and group: the measurement behind scheme qd8-f32-qb4w.

    python benchmarks/quantisation_error.py > docs/results/quantisation-error.json

Root mean square error of the quantised weights over their root mean square, for normal data, for Student's t with 5
degrees of freedom (heavier tails) and for the projections of the model inside. Deterministic, half a minute.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dllm_core.checkpoint import open_folder
from dllm_core.quant import quantise_rows_4bit

Rows = npt.NDArray[Any]
GROUPS = (32, 64, 128)
SAMPLES = 1 << 21


def steps(rows: Rows, scale: Rows, low: int, high: int) -> Rows:
    safe = np.where(scale == 0, 1, scale)
    return np.clip(np.rint(rows / safe), low, high) * scale


def extreme(rows: Rows) -> Rows:
    """The value of largest magnitude, with its sign."""
    high, low = rows.max(1, keepdims=True), rows.min(1, keepdims=True)
    return np.where(high >= -low, high, low)


def symmetric(rows: Rows) -> Rows:
    return steps(rows, np.abs(rows).max(1, keepdims=True) / 7, -7, 7)


def signed(rows: Rows) -> Rows:
    return steps(rows, extreme(rows) / -8, -8, 7)


def scheme(rows: Rows) -> Rows:
    codes, scale = quantise_rows_4bit(np.ascontiguousarray(rows, np.float32))
    return codes * scale[:, None].astype(np.float64)


def zero_point(rows: Rows) -> Rows:
    high, low = np.maximum(rows.max(1, keepdims=True), 0), np.minimum(rows.min(1, keepdims=True), 0)
    scale = np.where(high > low, (high - low) / 15, 1)
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(rows / scale) + zero, 0, 15) - zero) * scale


def best_scale(rows: Rows) -> Rows:
    """The scale of least squared error among 24 for each group."""
    tried = [steps(rows, extreme(rows) * factor / -8, -8, 7) for factor in np.linspace(0.7, 1.05, 24)]
    errors = [np.square(t - rows).sum(1) for t in tried]
    return np.choose(np.argmin(errors, axis=0)[:, None], tried)


RULES: dict[str, Callable[[Rows], Rows]] = {
    "symmetric, amax / 7": symmetric,
    "extreme / -8": signed,
    "extreme / -8.4": scheme,
    "zero point": zero_point,
    "best scale": best_scale,
}


def model_inside() -> Rows:
    folder = open_folder(Path(str(files("dllm_tiny"))) / "model")
    projections = (folder.tensor(name) for name in folder.names() if "blocks" in name)
    return np.concatenate([t.array().reshape(-1) for t in projections if len(t.shape) == 2]).astype(np.float64)


def main() -> None:
    rng = np.random.default_rng(0)
    data = {"normal": rng.standard_normal(SAMPLES), "Student t, 5 degrees": rng.standard_t(5, SAMPLES)}
    data["model inside"] = model_inside()
    found = []
    for weights, values in data.items():
        for group in GROUPS:
            rows = values[: len(values) // group * group].reshape(-1, group)
            power = np.square(rows).mean()
            for rule, quantise in RULES.items():
                error = float(np.sqrt(np.square(quantise(rows) - rows).mean() / power))
                found.append({"weights": weights, "group": group, "rule": rule, "error": error})
    json.dump({"results": found}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
