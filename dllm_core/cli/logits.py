"""`dllm logits`: the raw logits of one forward pass, as a numpy file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..errors import NotFoundError, UsageError
from .options import Ids, engine_options, ids_option, json_option
from .output import write_json
from .run import load_with_progress
from .terminal import settings
from .text import read_prompt

EXAMPLE = 'dllm logits "What is 217 + 384?" --rows 0,5 --out logits.npy'


class RowList(Ids):
    """Row numbers, or `all` (None)."""

    name = "rows"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "all" if value == "all" else super().convert(value, param, ctx)


@click.command(short_help="Logits of a prompt as a numpy file.")
@click.argument("prompt", nargs=-1)
@engine_options
@click.option("--rows", type=RowList(), metavar="0,5|all", default="all", show_default=True, help="Which positions.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="F.npy", help="File to write.")
@click.option("--chat", is_flag=True, help="Put the text into the chat template first.")
@ids_option("Token ids instead of a text; needs no tokenizer.")
@click.option("--no-stdin", is_flag=True, help="Leave standard input alone.")
@json_option
def command(
    prompt: tuple[str, ...],
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    rows: list[int] | str,
    out: Path,
    chat: bool,
    prompt_ids: list[int] | None,
    no_stdin: bool,
    as_json: bool,
) -> None:
    """Run the model once over PROMPT and write its logits, float32 [rows, vocabulary], to --out.

    The file appears whole or not at all; an existing one is replaced.
    """
    check_target(out)
    if chat and prompt_ids is not None:
        raise UsageError("--chat needs a text, but --prompt-ids is given", "drop one of them")
    source = read_prompt(prompt, prompt_ids, not no_stdin, EXAMPLE)
    engine = load_with_progress(model, backend, scheme, threads)
    ids = engine.encode(source, chat)
    chosen = None if isinstance(rows, str) else rows
    logits = engine.logits(ids, chosen)
    write_array(out, logits)
    if as_json:
        write_json(
            {
                "model": model,
                "tokens": ids,
                "rows": list(range(len(ids))) if chosen is None else chosen,
                "shape": list(logits.shape),
                "file": str(out),
                "backend": engine.backend.name,
                "isa": engine.backend.isa,
                "scheme": engine.model.scheme,
            }
        )
    else:
        settings().note(f"{out}: float32 {list(logits.shape)}")


def check_target(path: Path) -> None:
    """Refuse a place that cannot be written before any work is done."""
    if not path.parent.is_dir():
        raise NotFoundError(f"folder {path.parent} of --out does not exist", f"make it: mkdir -p {path.parent}")
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder", f"name a file: {path / 'logits.npy'}")
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise UsageError(f"--out {path} is no regular file", "name a file")


def write_array(path: Path, array: Any) -> None:
    """Write a .npy file under a temporary name beside `path`, then rename: nobody ever sees half of it."""
    import numpy as np

    path = path.resolve()  # through a link, which stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as file:
            np.save(file, array)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
