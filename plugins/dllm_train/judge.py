"""Exact match of a model on prompts that training never saw."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from dllm_core import load

from . import tasks

TOGETHER = 25  # prompts in one canvas


def judge_model(
    model: str, backend: str | None, scheme: str | None, threads: int | None, per_task: int = 50
) -> dict[str, Any]:
    """Decode the held-out set with the model's own defaults; returns what a result file holds."""
    engine = load(model, backend=backend, scheme=scheme, threads=threads)
    rows = tasks.held_out_set(per_task)
    options = engine.options()
    right: dict[str, list[bool]] = {task: [] for task in tasks.TASKS}
    wrong = []
    began = time.perf_counter()
    with click.progressbar(length=len(rows), label="judging", file=click.get_text_stream("stderr")) as bar:
        for at in range(0, len(rows), TOGETHER):
            part = rows[at : at + TOGETHER]
            for row, answer in zip(part, engine.generate_batch([r["prompt"] for r in part]), strict=True):
                right[row["task"]].append(answer.text == row["answer"])
                if answer.text != row["answer"]:
                    wrong.append({**row, "got": answer.text})
            bar.update(len(part))
    return {
        "model": model,
        "backend": engine.backend.name,
        "scheme": engine.model.scheme,
        "max_tokens": options.max_tokens,
        "block_length": options.block_length,
        "steps": options.total_steps,
        "seconds": round(time.perf_counter() - began, 1),
        "prompts": len(rows),
        "exact": sum(map(sum, right.values())),
        "tasks": {task: {"prompts": len(v), "exact": sum(v)} for task, v in right.items()},
        "wrong": wrong,
    }


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print the result: JSON, or a line per task and the total."""
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    for task, cell in result["tasks"].items():
        click.echo(f"{task:10} {cell['exact']:4} of {cell['prompts']:4}  {cell['exact'] / cell['prompts']:6.1%}")
    click.echo(f"{'all':10} {result['exact']:4} of {result['prompts']:4}  {result['exact'] / result['prompts']:6.1%}")


def write_tasks(path: Path, per_task: int) -> None:
    """Write the held-out set as a task file of `dllm sweep`."""
    path.write_text("".join(json.dumps(row) + "\n" for row in tasks.held_out_set(per_task)), encoding="utf-8")
