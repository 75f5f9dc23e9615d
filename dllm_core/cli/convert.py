"""`dllm convert`: pack a model once, so that later starts map it and use it where it lies."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from .options import MODEL, backend_option, json_option, scheme_option, thread_count, threads_option
from .output import write_json, write_text


@click.command(short_help="Pack a model for a backend.")
@click.argument("source", type=MODEL, metavar="SRC")
@click.argument("target", type=click.Path(path_type=Path), metavar="DST")
@scheme_option
@backend_option
@threads_option
@click.option("--force", is_flag=True, help="Replace DST if it is a packed model.")
@json_option
def command(
    source: str,
    target: Path,
    scheme: str | None,
    backend: str | None,
    threads: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Pack the model SRC (a name or a folder) and write it to the new folder DST.

    \b
      dllm convert models/LLaDA-8B-Instruct llada-int8 --scheme qd8-f32-qb8w
      dllm run -m llada-int8 "What is 217 + 384?"

    The result holds the weights as the backend uses them on this CPU; they are mapped when it is run, not read and
    packed again. Another backend or CPU rearranges them in memory. DST appears whole or not at all.
    """
    from ..api import check_scheme, choose_backend
    from ..checkpoint import open_folder
    from ..checkpoint.convert import convert
    from ..checkpoint.packed import PackedFolder
    from ..plugins import load_registry
    from ..resolve import resolve
    from .inspection import size
    from .progress import Progress

    registry = load_registry()
    folder = resolve(source, registry)
    engine = choose_backend(registry, backend, thread_count(threads))
    opened = open_folder(folder)
    if isinstance(opened, PackedFolder):
        scheme = opened.check_scheme(scheme)
    scheme = scheme or engine.default_scheme
    check_scheme(engine, scheme)
    began = time.perf_counter()
    with Progress("packing", sys.stderr) as bar:
        done = convert(
            folder,
            target,
            engine,
            scheme,
            force=force,
            registry=registry,
            progress=bar.update,
        )
    seconds = time.perf_counter() - began
    if as_json:
        write_json({**asdict(done), "seconds": seconds})
    else:
        write_text(
            f"{done.path}: {size(done.source_bytes)} packed into {size(done.bytes)}, {done.layout}, {seconds:.1f} s"
        )
