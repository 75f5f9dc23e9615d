"""The recipe of the model inside: tasks, tokenizer, network, training loop. `dllm train` and `dllm judge`."""

from __future__ import annotations

from pathlib import Path

import click

from dllm_core import hookimpl


@hookimpl
def dllm_register_commands(cli: click.Group) -> None:
    cli.add_command(train_command)
    cli.add_command(judge_command)


@click.command("train", short_help="Train the model inside (extra: train).")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the run.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=95.0, show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="One-thread processes.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
def train_command(out: Path, minutes: float, workers: int, seed: int) -> None:
    """Train the model inside from nothing, or resume the run in --out.

    Writes config.json, tokenizer.json, tokenizer_config.json and model.safetensors (bfloat16) there. The time
    counts over resumed runs; the learning rate follows it.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        from dllm_core.errors import UsageError

        raise UsageError("training needs torch", 'pip install "dllm[train]"') from error
    from .train import Options
    from .train import train as run

    run(Options(out=out, minutes=minutes, workers=workers, seed=seed))


@click.command("judge", short_help="Exact match of a model on the held-out tasks.")
@click.option("--model", "-m", default="tiny", show_default=True, help="A model trained by this recipe.")
@click.option("--backend", default=None, help="Backend; the best available one if not given.")
@click.option("--scheme", default=None, help="Quantisation scheme; the backend's default if not given.")
@click.option("--threads", type=click.IntRange(1), default=None)
@click.option("--per-task", type=click.IntRange(1, 200), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Only write the prompts to a task file.")
def judge_command(
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    per_task: int,
    as_json: bool,
    write: Path | None,
) -> None:
    """Answer the held-out prompts at one token a step and count exact matches, task by task."""
    from .judge import judge_model, show, write_tasks

    if write is not None:
        write_tasks(write, per_task)
        return
    show(judge_model(model, backend, scheme, threads, per_task), as_json)
