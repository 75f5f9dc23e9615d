"""Write the commands into docs/cli.md, from the command line itself.

python docs/make_cli.py          rewrite what stands between the markers
python docs/make_cli.py --check  exit 1 if it differs from the commands
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import click

from dllm_core.cli.grouped import GroupedOption
from dllm_core.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
PART = re.compile(r"(<!-- commands -->\n).*(<!-- end commands -->)", re.S)
COMMON = {"--color", "--quiet", "--debug", "--help"}  # said once, in the head of the page


def commands() -> str:
    """A list of the verbs, then a section for each."""
    with click.Context(cli, info_name="dllm") as ctx:
        verbs = {name: cli.get_command(ctx, name) for name in cli.list_commands(ctx)}
        ours = {}
        for name, verb in verbs.items():
            if verb is not None and _ours(verb):
                ours[name] = verb
                inner = verb.list_commands(ctx) if isinstance(verb, click.Group) else []
                ours |= {f"{name} {sub}": verb.get_command(ctx, sub) for sub in inner}
        index = "\n".join(f"- [`dllm {n}`](#dllm-{n.replace(' ', '-')}): {verb.short_help}" for n, verb in ours.items())
        return "\n\n".join([index, *(section(name, verb, ctx) for name, verb in ours.items())]) + "\n"


def _ours(verb: click.Command) -> bool:
    """Not a verb of somebody else's plugin that happens to be installed here."""
    module = getattr(inspect.unwrap(verb.callback), "__module__", "") if verb.callback else ""
    return module.startswith("dllm_")


def section(name: str, verb: click.Command, parent: click.Context) -> str:
    ctx = click.Context(verb, info_name=name, parent=parent)
    usage = " ".join([ctx.command_path, *verb.collect_usage_pieces(ctx)])
    parts = [f"## dllm {name}", f"```text\n{usage}\n```", description(verb.help or "")]
    groups: dict[str, list[str]] = {"": []}
    for param in verb.get_params(ctx):
        if isinstance(param, click.Option) and not (param.hidden or COMMON.intersection(param.opts)):
            groups.setdefault(param.group if isinstance(param, GroupedOption) else "", []).append(row(param, ctx))
    for group, rows in groups.items():
        if rows:
            head = [f"**{group}**", ""] if group else []
            parts.append("\n".join([*head, "| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def description(text: str) -> str:
    """A docstring as Markdown: what click is told not to wrap is code."""
    found = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        code = kept != paragraph
        lines = [line.strip() for line in kept.split("\n")]
        found.append("```sh\n" + "\n".join(lines) + "\n```" if code else escape(" ".join(lines)))
    return "\n\n".join(found)


def row(param: click.Option, ctx: click.Context) -> str:
    record = param.get_help_record(ctx)
    assert record is not None
    names = ", ".join(f"`{name}`" for name in sorted(param.opts, key=len, reverse=True))
    if isinstance(param.type, click.Choice):
        names += " " + " \\| ".join(f"`{choice}`" for choice in param.type.choices)
    elif not param.is_flag:
        metavar = param.metavar or param.type.name.upper()
        names += f" `{metavar.replace('|', ' or ')}`"
    variable = f" (`{param.envvar}`)" if isinstance(param.envvar, str) else ""
    return f"| {names} | {escape(record[1]).replace('|', chr(92) + '|')}{variable} |"


def escape(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    new = PART.sub(lambda part: f"{part[1]}{commands()}{part[2]}", text)
    if new == text:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/cli.md differs from the commands; run docs/make_cli.py", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
