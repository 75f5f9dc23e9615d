"""Is everything documented, and do all commands that pages show exist?

python docs/check.py          exit 1 and name what is missing or wrong

Every hook, operator, scheme, error, command, decoding option and strategy must have its place. The pages made from
source have their own --check; this one looks at the pages as a reader does, by headings and names, so that a generator
that leaves something out is noticed too. Command lines of all pages, also those that nobody runs, must parse.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from run_blocks import blocks

from dllm_core import errors, hookspecs
from dllm_core.backend import Backend
from dllm_core.cli.main import cli
from dllm_core.cli.terminal import Settings
from dllm_core.decoding.options import DecodeOptions
from dllm_core.decoding.strategies import STRATEGIES
from dllm_core.quant import SCHEMES
from dllm_core.testing import CASES

DOCS = Path(__file__).resolve().parent
NO_SHAPES = {"linear_bytes", "scratch_bytes", "layout", "pack", "unpack_file", "allocate_kv", "add_"}


def headings(page: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", (DOCS / page).read_text("utf-8"), re.M))


def code(page: str) -> set[str]:
    """What stands in backquotes, and the words of it."""
    spans = re.findall(r"`([^`\n]+)`", (DOCS / page).read_text("utf-8"))
    return {*spans, *(word for span in spans for word in re.split(r"[\s=]+", span))}


def commands(group: click.Group, ctx: click.Context, prefix: str = "dllm") -> Iterator[str]:
    for name in group.list_commands(ctx):
        verb = group.get_command(ctx, name)
        callback = inspect.unwrap(verb.callback) if verb is not None and verb.callback else None
        if callback is not None and callback.__module__.startswith("dllm_"):  # not of somebody else's plugin
            yield f"{prefix} {name}"
        if isinstance(verb, click.Group):
            yield from commands(verb, ctx, f"{prefix} {name}")


def missing() -> Iterator[str]:
    """A line for everything that is not where a reader would look."""
    reference, words = headings("reference.md"), code("reference.md")
    for name, hook in inspect.getmembers(hookspecs, inspect.isfunction):
        if hasattr(hook, "dllm_spec") and (name not in reference or not inspect.getdoc(hook)):
            yield f"hook {name}: reference.md"
    for name, member in vars(Backend).items():
        if name.startswith("_"):
            continue
        operator = callable(member) or isinstance(member, property)
        if name not in (reference if operator else words):
            yield f"operator {name}: reference.md"
        if operator and name not in NO_SHAPES and "[" not in (inspect.getdoc(member) or ""):
            yield f"operator {name}: its docstring tells no shapes"
    for case in {type(case) for case in CASES}:
        if case.__name__ not in words:
            yield f"operator case {case.__name__}: reference.md"
    for name in SCHEMES:
        yield from (f"scheme {name}: {page}" for page in ("reference.md", "quantisation.md") if name not in code(page))
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, errors.DllmError) and name not in words:
            yield f"error {name}: reference.md"
    with click.Context(cli, info_name="dllm") as ctx:
        for name in commands(cli, ctx):
            if name not in headings("cli.md"):
                yield f"command {name}: cli.md"
    for field in dataclasses.fields(DecodeOptions):
        yield from (f"option {field.name}: {p}" for p in ("decoding.md", "python.md") if field.name not in code(p))
    for name in STRATEGIES:
        if name not in code("decoding.md"):
            yield f"strategy {name}: decoding.md"


def unnamed() -> Iterator[str]:
    """Files that a page lets readers write without telling them the name: comments do not show."""
    for page in DOCS.glob("*.md"):
        for block in blocks(page):
            if block.marks.get("file", "") not in {"", *code(page.name)}:
                yield f"{block}: the text does not name the file {block.marks['file']}"


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(where, arguments) of every dllm command in the sh blocks of the README and of all pages."""
    for page in [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]:
        for block in (b for b in blocks(page) if b.language == "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                words: list[str] = []
                for token in [*lexer, ";"] if "dllm " in line else ():
                    if set(token) <= set("|&;()<>"):
                        if words and Path(words[0]).name == "dllm":
                            yield f"{page.name}:{block.line}", words[1:]
                        words = []
                    elif words or not re.fullmatch(r"\w+=.*", token):  # a variable before the command
                        words.append(token)


def unparsable() -> Iterator[str]:
    """A line for every command that the command line would refuse."""
    with click.Context(cli, info_name="dllm", obj=Settings()) as ctx:
        for where, words in command_lines():
            try:
                verb, name = cli.get_command(ctx, words[0]), words.pop(0)
                if isinstance(verb, click.Group) and words and not words[0].startswith("-"):
                    verb, name = verb.get_command(ctx, words[0]), words.pop(0)
                if verb is None:
                    raise click.UsageError(f"there is no command {name}")
                if "--help" not in words:
                    verb.make_context(name, words, parent=ctx)
            except (click.ClickException, errors.DllmError) as error:
                yield f"{where}: dllm {name} {' '.join(words)}: {error}"


def main() -> int:
    found = [*(f"not documented: {line}" for line in missing()), *unnamed(), *unparsable()]
    for line in found:
        print(line, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
