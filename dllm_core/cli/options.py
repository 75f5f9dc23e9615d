"""Options that several verbs share, and the shell completion of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..errors import UsageError
from .terminal import settings

Decorator = Callable[[Any], Any]


class Name(click.ParamType):
    """Free text whose known values the shell can complete; whether a value exists is for the core to say."""

    name = "text"

    def __init__(self, known: Callable[[], list[tuple[str, str]]], paths: bool = False) -> None:
        self.known, self.paths = known, paths

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(n, help=text) for n, text in self.known() if n.startswith(incomplete)]
        return found or ([CompletionItem(incomplete, type="file")] if self.paths else [])


class Ids(click.ParamType):
    """Whole numbers separated by commas or blanks: token ids or rows."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if not isinstance(value, str):
            return value
        items = value.replace(",", " ").split()
        for item in items:
            if not item.removeprefix("-").isdecimal() or len(item) > 18:
                self.fail(f"{item[:40]!r} is not a whole number; write them as 1,2,3", param, ctx)
        if not items:
            self.fail("the list is empty; write it as 1,2,3", param, ctx)
        return [int(item) for item in items]


def _models() -> list[tuple[str, str]]:
    from ..plugins import load_registry

    return [(name, summary) for name, (_, summary) in sorted(load_registry().models.items())]


def _backends() -> list[tuple[str, str]]:
    from ..plugins import load_registry

    return [(name, entry.summary) for name, entry in sorted(load_registry().backends.items())]


def _schemes() -> list[tuple[str, str]]:
    from ..quant import SCHEMES

    return [(name, "") for name in SCHEMES]


MODEL = Name(_models, paths=True)
BACKEND = Name(_backends)
SCHEME = Name(_schemes)


def model_option(command: Any) -> Any:
    return click.option(
        "--model",
        "-m",
        type=MODEL,
        metavar="NAME|FOLDER",
        envvar="DLLM_MODEL",
        default="tiny",
        show_default=True,
        help="A known model or the folder of one.",
    )(command)


def backend_option(command: Any) -> Any:
    return click.option(
        "--backend",
        "-b",
        type=BACKEND,
        metavar="NAME",
        envvar="DLLM_BACKEND",
        help="Backend (see: dllm backends); the best available one if not given.",
    )(command)


def scheme_option(command: Any) -> Any:
    return click.option(
        "--scheme",
        type=SCHEME,
        metavar="NAME",
        envvar="DLLM_SCHEME",
        help="Quantisation scheme: f32, bf16, qd8-f32-qc8w, qd8-f32-qb8w or qd8-f32-qb4w; the backend's default if "
        "not given.",
    )(command)


def threads_option(command: Any) -> Any:
    return click.option(
        "--threads", type=int, metavar="N", envvar="DLLM_THREADS", help="Threads; every core if not given."
    )(command)


def engine_options(command: Any) -> Any:
    """--model --backend --scheme --threads."""
    for option in (threads_option, scheme_option, backend_option, model_option):
        command = option(command)
    return command


def thread_count(given: int | None) -> int:
    """The number of threads to use; UsageError below 1."""
    from ..api import default_threads

    if given is not None and given < 1:
        raise UsageError(f"--threads is {given}", "it must be at least 1")
    return given or default_threads()


def ids_option(text: str) -> Decorator:
    return click.option("--prompt-ids", type=Ids(), metavar="1,2,3", help=text)


def json_option(command: Any) -> Any:
    """--json: one object on stdout, errors as one object on stderr."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
        settings().json |= value
        return value

    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=remember, help="Print one JSON object."
    )(command)
