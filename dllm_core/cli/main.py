"""Entry point of `dllm`: the verbs, loaded when they are used, and the one place where errors become exit codes."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from .. import __version__
from ..errors import UsageError, quote
from .report import INTERRUPTED, report
from .terminal import COLORS, Settings, settings

# verb -> module in this package that defines `command`
VERBS = {
    "run": "run",
    "fill": "fill",
    "score": "score",
    "trace": "trace",
    "strategies": "strategies",
    "tokenize": "tokenize",
    "logits": "logits",
    "inspect": "inspection",
    "convert": "convert",
    "backends": "backends",
    "check": "check",
    "bench": "bench",
    "profile": "profile",
    "sweep": "sweep",
    "plugins": "plugins",
    "completion": "completion",
}
PLUGIN_VERBS = "dllm_core.cli.plugin_verbs"  # in the meta of a context: loaded once an invocation


class Verbs(click.Group):
    """A group that imports a builtin verb when it is asked for, and plugins only when something else is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *sorted(self._plugin_commands(ctx))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            command = import_module(f"{__package__}.{VERBS[cmd_name]}").command
        else:
            command = self._plugin_commands(ctx).get(cmd_name)
        return _accept_common(command) if command is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if not verb.startswith("-") and self.get_command(ctx, verb) is None:
            verbs = self.list_commands(ctx)
            near = difflib.get_close_matches(verb, verbs, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"unknown command {quote(verb)}", f"{hint}commands: {', '.join(verbs)}")
        return super().resolve_command(ctx, args)

    def _plugin_commands(self, ctx: click.Context) -> dict[str, click.Command]:
        """The verbs that plugins add; what is broken is told by `dllm plugins` and hidden here."""
        if PLUGIN_VERBS not in ctx.meta:
            from .foreign import load_commands

            ctx.meta[PLUGIN_VERBS] = {name: c for name, c in load_commands()[0].items() if name not in VERBS}
        return ctx.meta[PLUGIN_VERBS]


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep a common option, wherever it was given; the default says nothing."""
    if value is not None and value is not False:
        setattr(settings(), str(param.name), value)


def _common() -> list[click.Option]:
    keep: dict[str, Any] = {"callback": _remember, "expose_value": False, "is_eager": True}
    return [
        click.Option(["--color"], type=click.Choice(COLORS), help="Colours; auto: on a terminal only.", **keep),
        click.Option(["--quiet", "-q"], is_flag=True, help="No progress, hints or warnings on stderr.", **keep),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error.", **keep),
    ]


def _accept_common(command: click.Command) -> click.Command:
    """Let `command` take the common options too, where it has no options of these names."""
    taken = {opt for p in command.params for opt in p.opts}
    command.params += [o for o in _common() if taken.isdisjoint(o.opts)]
    return command


@click.group(
    cls=Verbs,
    params=_common(),
    invoke_without_command=True,
    context_settings={"auto_envvar_prefix": "DLLM", "help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Try: dllm run "What is 217 + 384?"',
)
@click.version_option(__version__, prog_name="dllm", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Masked diffusion language models on ordinary CPUs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (see docs: 0 to 6, 130)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = Settings.scan(words)
    _forgive(sys.stdout)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: given.warn(str(message))
            result = cli.main(words, prog_name="dllm", standalone_mode=False, obj=given)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit as stop:  # completion, and click's quiet end for a closed pipe
        _silence(sys.stdout)
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:
        _silence(sys.stdout)
        return 1
    except Exception as error:  # whatever it is, the user gets one line and a script an exit code
        code = report(error, given)
        _silence(sys.stdout)
        return code


def _forgive(stream: Any) -> None:
    """Let characters that the stream's encoding lacks be escaped: an answer must not die of its last character."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def _silence(stream: Any) -> None:
    """After a failed write the interpreter would try again at its end, and complain: flush, or send it nowhere."""
    try:
        stream.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


if __name__ == "__main__":
    sys.exit(main())
