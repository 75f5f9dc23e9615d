"""Write the generated parts of reference.md and python.md: signatures, docstrings and fields, from the source itself.

python docs/make_reference.py          rewrite what stands between the markers
python docs/make_reference.py --check  exit 1 if it differs from the source
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import click
from dllm_numpy.panels import PanelBackend, Panels

from dllm_core import api, errors, hookspecs, packing, quant, results, tensors
from dllm_core import backend as operators
from dllm_core.cli import run
from dllm_core.decoding import loop, options
from dllm_core.models import base
from dllm_core.testing import CASES, random_model, run_checks
from dllm_core.testing.conformance import BackendConformance

PAGES = ("reference.md", "python.md")
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end generated -->)", re.S)
SECTION = re.compile(r" +# -+ (.+?) -+")  # the comment that opens a group of methods
FIELD = re.compile(r"    (\w+): ([^#=]+?)(?: = ([^#]+?))?(?:  # (.+))?")


def hooks() -> str:
    found = [node for node in tree(hookspecs).body if isinstance(node, ast.FunctionDef)]
    return join(markdown(hookspecs), *(function(node) for node in found))


def backend_operators() -> str:
    """Every public method of Backend, in groups as the source has them."""
    [body] = [node for node in tree(operators).body if getattr(node, "name", "") == "Backend"]
    assert isinstance(body, ast.ClassDef)
    lines = inspect.getsource(operators).splitlines()
    groups = {n: found[1] for n, line in enumerate(lines, 1) if (found := SECTION.fullmatch(line))}
    parts, opened = ["### Attributes", fields(operators.Backend)], 0
    for node in body.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            group = max(n for n in groups if n < node.lineno)
            if group != opened:
                parts.append(f"### {groups[group][0].upper()}{groups[group][1:]}")
                opened = group
            parts.append(join(function(node, "####"), duty(node), tolerance(node.name)))
    return join(*parts)


def duty(node: ast.FunctionDef) -> str:
    """What a subclass of Backend owes."""
    decorators = {ast.unparse(d) for d in node.decorator_list}
    if "abstractmethod" in decorators:
        return "*Abstract: `NumpyBackend` has it.*"
    if isinstance(node.body[-1], ast.Raise):
        return "*Optional: refuses unless overridden. `NumpyBackend` has it for its own handles.*"
    return "*A property with a default.*" if "property" in decorators else "*Has a default body.*"


def tolerance(name: str) -> str:
    """How the operator cases judge it."""
    cases = {type(case): None for case in CASES if case.op == name}
    lines = []
    for case in cases:
        why = f" Tolerance: {case.reason}." if case.reason else " No tolerance."
        lines.append(f"*Checked by `{case.__name__}`: {escape(first_paragraph(case)).rstrip('.')}.{escape(why)}*")
    return "\n".join(lines)


def data() -> str:
    shown = [operators.Rows, operators.LayerWeights, operators.KVLayer, operators.Scores, tensors.Tensor]
    return join(*(record(cls) for cls in [*shown, packing.Layout, packing.Packed, operators.Clock]))


def panels() -> str:
    return join("### PanelBackend", markdown(PanelBackend), record(Panels))


def conformance() -> str:
    """What a subclass sets, and what it is then tested for."""
    tests = [f for n, f in vars(BackendConformance).items() if n.startswith("test_")]
    lines = []
    for test in tests:
        told = first_paragraph(test)
        lines.append(f"- `{test.__name__}`{': ' if told else ''}{escape(told)}")
    make = call(BackendConformance.make.__func__, "####", "BackendConformance.")
    head = join("### BackendConformance", markdown(BackendConformance), fields(BackendConformance), make)
    return join(head, "The tests:", "\n".join(lines), *map(call, [run_checks, random_model]))


def models() -> str:
    return join(*(record(cls) for cls in (base.Model, base.Facts, base.Tensors)), *map(call, [base.projection]))


def schemes() -> str:
    rows = ["| scheme | bits of a weight | inputs per weight scale | what |", "|---|---:|---|---|"]
    for s in quant.SCHEMES.values():
        group = str(s.group or "all") if s.quantised else "no scales"
        rows.append(f"| `{s.name}` | {s.bits} | {group} | {s.summary} |")
    mine = [f for _, f in inspect.getmembers(quant, inspect.isfunction) if f.__module__ == quant.__name__]
    mine = sorted((f for f in mine if not f.__name__.startswith("_")), key=lambda f: f.__code__.co_firstlineno)
    return join(markdown(quant), "\n".join(rows), record(quant.QuantisedWeight), *map(call, mine))


def error_classes() -> str:
    found = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.DllmError)]
    rows = [f"| `{c.__name__}` | `{c.__base__.__name__}` | {c.exit_code} | {first_paragraph(c)} |" for c in found]
    return "\n".join(["| class | is a | exit code | when |", "|---|---|---:|---|", *rows])


def engine() -> str:
    public = [f for n, f in vars(api.Engine).items() if inspect.isfunction(f) and not n.startswith("_")]
    head = ["### Engine", markdown(api.Engine)]
    return join(call(api.load), *head, *(call(f, "####", "Engine.") for f in public))


def outcomes() -> str:
    return join(record(results.Generation), record(loop.Step), record(results.Greedy))


def decode_options() -> str:
    """With the help of the command line where a field has no comment."""
    params = {p.name: p.help for p in run.command.params if isinstance(p, click.Option)}
    meanings = {str(name): help.partition(" [")[0] for name, help in params.items() if help}
    return join("### DecodeOptions", markdown(options.DecodeOptions), fields(options.DecodeOptions, meanings))


PARTS: dict[str, Callable[[], str]] = {
    "hooks": hooks,
    "operators": backend_operators,
    "data": data,
    "panels": panels,
    "conformance": conformance,
    "models": models,
    "schemes": schemes,
    "errors": error_classes,
    "engine": engine,
    "outcomes": outcomes,
    "options": decode_options,
}


# ---- Markdown from source ----


def join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def call(what: Callable[..., Any], level: str = "###", prefix: str = "") -> str:
    """A function that is no method of Backend."""
    node = ast.parse(textwrap.dedent(inspect.getsource(what))).body[0]
    assert isinstance(node, ast.FunctionDef)
    return function(node, level, prefix)


def function(node: ast.FunctionDef, level: str = "###", prefix: str = "") -> str:
    """Heading, signature and docstring."""
    return join(f"{level} {prefix}{node.name}", f"```py\n{signature(node)}\n```", text(ast.get_docstring(node)))


def signature(node: ast.FunctionDef) -> str:
    """Name, parameters and result; parameters on lines of their own where one line is too long."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if any(ast.unparse(d) == "property" for d in node.decorator_list):
        return f"{node.name}{result.replace(' -> ', ': ')}"
    given = list(parameters(node.args))
    line = f"{node.name}({', '.join(given)}){result}"
    return line if len(line) <= 100 else f"{node.name}(\n" + "".join(f"    {p},\n" for p in given) + f"){result}"


def parameters(args: ast.arguments) -> Iterator[str]:
    defaults = [None] * (len(args.args) - len(args.defaults)) + list(args.defaults)
    for arg, default in zip(args.args, defaults, strict=True):
        if arg.arg not in ("self", "cls"):
            yield parameter(arg, default)
    if args.kwonlyargs:
        yield "*"
    yield from map(parameter, args.kwonlyargs, args.kw_defaults)
    if args.kwarg:
        yield f"**{ast.unparse(args.kwarg)}"


def parameter(arg: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(arg) + (f" = {ast.unparse(default)}".replace("'", '"') if default else "")


def record(cls: type) -> str:
    """A class with fields: docstring, the fields with their comments, and what else it computes."""
    node = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(node, ast.ClassDef)
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
    shown = [f"- `{signature(m)}`{': ' if ast.get_docstring(m) else ''}{brief(m)}" for m in methods]
    return join(f"### {cls.__name__}", markdown(cls), fields(cls), "\n".join(shown))


def brief(node: ast.FunctionDef) -> str:
    return " ".join(text(ast.get_docstring(node)).split())


def fields(cls: type, meanings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Table of the annotated names of a class body: type, default and the comment behind or above, or a meaning."""
    rows, above = [], ""
    for line in inspect.getsource(cls).splitlines():
        found = FIELD.fullmatch(line)
        if found and not found[1].startswith("_"):
            kind = found[2].replace(" | ", " or ")  # a bar in code ends the cell, or shows its backslash
            default = "" if found[3] is None or found[3].startswith("field(") else f"`{found[3]}`"
            comment = escape(found[4] or meanings.get(found[1], above.strip())).replace("|", "\\|")
            rows.append(f"| `{found[1]}` | `{kind}` | {default} | {comment} |")
        above = f"{above} {line[6:]}" if line.startswith("    # ") else ""
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows]) if rows else ""


def markdown(what: Any) -> str:
    """A docstring as Markdown, without the sentences that only make sense beside the source."""
    return text(inspect.getdoc(what))


def text(docstring: str | None) -> str:
    """Prose, and columns that are aligned with blanks as they stand."""
    found = []
    for paragraph in (docstring or "").split("\n\n"):
        aligned = re.search(r"\S {2,}\S", paragraph)
        found.append(f"```text\n{paragraph}\n```" if aligned else escape(paragraph))
    return join(*found)


def first_paragraph(what: Any) -> str:
    return " ".join((inspect.getdoc(what) or "").split("\n\n")[0].split())


def escape(prose: str) -> str:
    """Characters that Markdown would take for markup, outside of code."""
    pieces = prose.split("`")
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(?<!\*)\*(?!\*)|\*\*", lambda m: "\\*" * len(m[0]), pieces[i]).replace("<", "&lt;")
    return "`".join(pieces)


def main() -> int:
    stale = []
    for name in PAGES:
        page = Path(__file__).with_name(name)
        old = page.read_text(encoding="utf-8")
        new = PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", old)
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                page.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        print(f"docs: {', '.join(stale)} differ from the source; run docs/make_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
