"""`dllm completion`: the script that teaches a shell our verbs, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..errors import UnsupportedError

WHERE = {
    "bash": 'eval "$(dllm completion bash)"  in ~/.bashrc',
    "zsh": 'eval "$(dllm completion zsh)"  in ~/.zshrc',
    "fish": "dllm completion fish > ~/.config/fish/completions/dllm.fish",
    "powershell": "dllm completion powershell | Out-String | Invoke-Expression  in $PROFILE",
}


@click.command(short_help="Completion script for a shell.", epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(list(WHERE)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    found = get_completion_class(shell)
    if found is None:
        raise UnsupportedError(f"the installed click {click.__version__} has no completion for {shell}", "update click")
    click.echo(found(ctx.find_root().command, {}, "dllm", "_DLLM_COMPLETE").source())
