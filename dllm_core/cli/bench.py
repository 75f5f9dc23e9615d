"""`dllm bench`: measurements beside the machine's own limits, taken in the same run."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .options import MODEL, Ids, backend_option, json_option, scheme_option, thread_count, threads_option
from .output import write_json, write_table, write_text
from .terminal import settings

if TYPE_CHECKING:
    from ..backend import Backend
    from ..bench.limits import Limits
    from ..plugins import Registry

LINEAR = "4096x4096,12288x4096,4096x12288"  # the shapes of an 8B model


class Bench(click.Group):
    """Subcommands take the common options too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from .main import _accept_common

        found = super().get_command(ctx, cmd_name)
        return _accept_common(found) if found is not None else None


class Shapes(click.ParamType):
    """NxK: outputs and inputs of a layer, several separated by commas."""

    name = "shapes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[tuple[int, int]]:
        if not isinstance(value, str):
            return value
        found = [re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,5})", part) for part in value.split(",")]
        if not all(found):
            self.fail(f"{value!r} is no list of shapes; write them as 4096x4096,12288x4096", param, ctx)
        return [(int(m[1]), int(m[2])) for m in found if m]


def repeats_option(command: Any) -> Any:
    return click.option(
        "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="Rounds of it all."
    )(command)


def model_option(default: str) -> Any:
    return click.option(
        "--model",
        "-m",
        type=MODEL,
        metavar="NAME|FOLDER|random:NAME",
        default=default,
        show_default=True,
        help="A known model, a folder, or random weights of a known shape.",
    )


def layers_option(command: Any) -> Any:
    return click.option("--layers", type=int, metavar="N", help="Only the first N layers of the model.")(command)


@click.group(cls=Bench, short_help="Measure kernels, steps and answers beside the machine's limits.")
def command() -> None:
    """Measure, beside the machine's own limits in the same run.

    Shares are of the instruction that does most products in such kernels, and of reading memory. Everything is
    compared with the numpy reference before it is timed. Figures are medians.
    """


@command.command("peak", short_help="What the machine can do at most.")
@click.option("--threads", type=Ids(), metavar="1,2", help="Numbers of threads; 1 and every core if not given.")
@repeats_option
@json_option
def peak(threads: list[int] | None, repeats: int, as_json: bool) -> None:
    """int8, bf16 and float32 operations, memory reads, and the way from thread to thread, per number of threads.

    DLLM_ISA chooses the instructions.
    """
    from ..api import default_threads
    from ..bench.peak import bench_peak

    counts = sorted({thread_count(t) for t in threads or (1, default_threads())})
    results = bench_peak(counts, os.environ.get("DLLM_ISA"), repeats)
    if as_json:
        write_json({"bench": "peak", "results": results})
        return
    rows = [
        (r["what"], r["instruction"], str(r["threads"]), f"{r['rate']:.1f} {r['unit']}", _range(r, "rate", 1))
        for r in results
    ]
    write_table(["what", "how", "threads", "rate", "25-75 %"], rows, right=("threads", "rate", "25-75 %"))


@command.command("kernel", short_help="One linear layer.")
@click.option("--shape", type=Shapes(), default=LINEAR, show_default=True, metavar="NxK,...", help="Outputs x inputs.")
@click.option("--rows", type=Ids(), default="1,8,32,128,512", show_default=True, metavar="1,8", help="Rows at a time.")
@click.option("--scheme", metavar="NAME,...", envvar="DLLM_SCHEME", help="The backend's default if not given.")
@backend_option
@threads_option
@click.option("--warm", is_flag=True, help="One copy of the weights; else so many that none is in a cache.")
@repeats_option
@json_option
def kernel(
    shape: list[tuple[int, int]],
    rows: list[int],
    scheme: str | None,
    backend: str | None,
    threads: int | None,
    warm: bool,
    repeats: int,
    as_json: bool,
) -> None:
    """`linear` with quantisation of the rows and epilogue.

    \b
      dllm bench kernel --shape 4096x4096 --rows 1,8,32 --scheme qd8-f32-qc8w --threads 2
    """
    from ..api import check_scheme
    from ..bench.kernel import bench_kernel

    if min(rows) < 1:
        raise UsageError(f"--rows {min(rows)}", "it must be at least 1")
    engine, _ = _backend(backend, threads)
    schemes = scheme.split(",") if scheme else [engine.default_scheme]
    for name in schemes:
        check_scheme(engine, name)
    limits, results = bench_kernel(engine, shape, rows, schemes, repeats, warm, settings().note)
    _show("kernel", engine, limits, results, as_json)


def step_options(command: Any) -> Any:
    """What `bench step` and `profile` share."""
    options = [
        model_option("random:llada-8b"),
        click.option("--rows", type=int, default=128, show_default=True, metavar="R", help="Rows of the pass."),
        click.option("--head-rows", type=int, metavar="H", help="Rows that are scored; 32 at most if not given."),
        click.option("--cached", type=int, default=0, show_default=True, metavar="C", help="Positions before them."),
        layers_option,
        scheme_option,
        backend_option,
        threads_option,
        repeats_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@command.command("step", short_help="One forward pass of a model.")
@step_options
@click.option("--profile", is_flag=True, help="Split the step by kind of work and by layer.")
@json_option
def step(profile: bool, as_json: bool, **given: Any) -> None:
    """A forward pass over R rows, against C cached positions, and the head on the last H rows.

    \b
      dllm bench step --model random:llada-8b --rows 128 --head-rows 32 --scheme qd8-f32-qc8w
      dllm bench step --model random:llada-8b --rows 32 --cached 512 --layers 4

    Models with random weights need no checkpoint: random:llada-8b, random:llada-1b, random:dream-7b, or
    random:PATH/config.json.
    """
    run_step(profile, as_json, **given)


def run_step(
    profile: bool,
    as_json: bool,
    model: str,
    rows: int,
    head_rows: int | None,
    cached: int,
    layers: int | None,
    scheme: str | None,
    backend: str | None,
    threads: int | None,
    repeats: int,
) -> None:
    """`bench step` and `profile`."""
    from ..bench.models import open_model
    from ..bench.step import bench_step
    from .progress import Progress

    engine, registry = _backend(backend, threads)
    began = time.perf_counter()
    with Progress("packing", sys.stderr) as bar:
        built, source = open_model(model, engine, scheme, registry, layers, bar.update)
    load_s = time.perf_counter() - began
    head = min(rows, 32) if head_rows is None else head_rows
    limits, result = bench_step(built, source, model, rows, head, cached, repeats, settings().note)
    result = {**result, "load_s": load_s}
    if as_json or not profile:
        _show("step", engine, limits, [result], as_json)
    if profile and not as_json:
        _show_profile(engine, limits, result)


@command.command("decode", short_help="Whole answers, per strategy.")
@model_option("tiny")
@click.option("--strategy", default="reference,fast", show_default=True, metavar="NAME,...", help="Strategies to time.")
@click.option("--max-tokens", "-n", type=int, metavar="N", help="Length of the canvas; the model's own, else 128.")
@layers_option
@scheme_option
@backend_option
@threads_option
@repeats_option
@json_option
def decode(
    model: str,
    strategy: str,
    max_tokens: int | None,
    layers: int | None,
    scheme: str | None,
    backend: str | None,
    threads: int | None,
    repeats: int,
    as_json: bool,
) -> None:
    """Answers to one prompt: milliseconds of a pass and of the answer, and how many passes it took."""
    from ..bench.decode import bench_decode
    from ..bench.models import open_engine
    from .progress import Progress

    engine, registry = _backend(backend, threads)
    with Progress("packing", sys.stderr) as bar:
        opened, source = open_engine(model, engine, scheme, registry, layers, bar.update)
    names = strategy.split(",")
    limits, results = bench_decode(opened, source, names, max_tokens, repeats, settings().note)
    _show("decode", engine, limits, results, as_json)


# ---- output ----


def _backend(name: str | None, threads: int | None) -> tuple[Backend, Registry]:
    from ..api import choose_backend
    from ..plugins import load_registry

    registry = load_registry()
    return choose_backend(registry, name, thread_count(threads)), registry


def _show(bench: str, backend: Backend, limits: Limits, results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json({"bench": bench, "peak": limits.to_dict(), "results": results})
        return
    write_text(_headline(backend, limits))
    extra = {"kernel": [], "step": ["head_rows", "cached"], "decode": ["strategy", "forward_passes", "answer_ms"]}[
        bench
    ]
    columns = ["scheme", "shape", "rows", *extra, "ms", "25-75 %", "GOP/s", "of peak", "of bandwidth"]
    rows = [
        (
            r["scheme"],
            r["shape"],
            f"{r['rows']:g}",
            *(f"{r[key]:g}" if isinstance(r[key], float) else str(r[key]) for key in extra),
            f"{r['ms']:.3f}",
            _range(r, "ms", 3),
            f"{r['gops']:.1f}" if r["gops"] else "",
            _percent(r["share_of_peak"]),
            _percent(r["share_of_bandwidth"]),
        )
        for r in results
    ]
    names = [name.replace("_", " ") for name in columns]
    write_table(names, rows, right=[name for name in names if name not in ("scheme", "shape", "strategy")])


def _show_profile(backend: Backend, limits: Limits, result: dict[str, Any]) -> None:
    """Where the time of a step goes."""
    write_text(_headline(backend, limits))
    write_text(
        f"{result['shape']}, {result['rows']} rows, {result['cached']} cached, head on {result['head_rows']}: "
        f"{result['ms']:.1f} ms, {_percent(result['share_of_peak'])} of the peak"
    )
    split = sorted(result["split"].items(), key=lambda item: -item[1])
    rows = [(kind, f"{ms:.2f}", _percent(ms / result["ms"])) for kind, ms in split]
    write_table(["kind", "ms", "share"], rows, right=("ms", "share"))
    layers = [(str(i), f"{ms:.2f}", _percent(ms / result["ms"])) for i, ms in enumerate(result["layers"])]
    write_table(["layer", "ms", "share"], layers, right=("layer", "ms", "share"))


def _headline(backend: Backend, limits: Limits) -> str:
    facts = limits.to_dict()
    known = [
        f"{facts[f'{k}_instruction']} {facts[f'{k}_gops']:.0f} GOP/s"
        for k in limits.instructions
        if f"{k}_gops" in facts
    ]
    reading = [f"reading {facts['read_gbs']:.1f} GB/s"] if "read_gbs" in facts else ["limits not measured"]
    plural = "s" if backend.threads != 1 else ""
    return f"{backend.name} {backend.isa}, {backend.threads} thread{plural}; {', '.join(known + reading)}"


def _range(result: dict[str, Any], key: str, digits: int) -> str:
    return f"{result[f'{key}_p25']:.{digits}f}-{result[f'{key}_p75']:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
