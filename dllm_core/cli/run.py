"""`dllm run`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .decoding import decoding_options
from .grouped import GroupedCommand
from .options import engine_options, ids_option, json_option
from .output import write_ids, write_json, write_text
from .terminal import settings
from .text import read_prompt
from .watch import Watch, watch_options

if TYPE_CHECKING:
    from ..api import Engine

EXAMPLE = 'dllm run "What is 217 + 384?"'


@click.command(cls=GroupedCommand, short_help="Answer a prompt.")
@click.argument("prompt", nargs=-1)
@engine_options
@click.option("--system", "-s", metavar="TEXT", help="System message of the chat template.")
@click.option("--no-chat", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@ids_option("Token ids instead of a text; needs no tokenizer.")
@click.option("--no-stdin", is_flag=True, help="Leave standard input alone.")
@watch_options
@click.option("--verbose", "-v", is_flag=True, help="Report times, passes and memory at the end.")
@json_option
@decoding_options()
def command(
    prompt: tuple[str, ...],
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    system: str | None,
    no_chat: bool,
    prompt_ids: list[int] | None,
    no_stdin: bool,
    watch: Watch,
    verbose: bool,
    as_json: bool,
    decoding: dict[str, Any],
) -> None:
    """Answer PROMPT. Text piped to standard input is put before it; PROMPT - is standard input alone.

    \b
      dllm run "What is 217 + 384?"
      dllm run --visual --strategy fast "Sort 41 7 93 22"
      cat notes.txt | dllm run "Extract: Anna is a 31 year old baker from Oslo." --json

    The answer goes to stdout, everything else to stderr. In brackets stand the values that count where neither an
    option nor the strategy nor the model says otherwise. Exit codes: 0 done, 1 failed, 2 usage, 3 not found,
    4 does not fit in memory, 6 not supported, 130 interrupted.
    """
    if system is not None and (no_chat or prompt_ids is not None):
        raise UsageError("--system needs the chat template", "drop --no-chat or --prompt-ids, or put the text yourself")
    source = read_prompt(prompt, prompt_ids, not no_stdin, EXAMPLE)
    with watch.opened():
        engine = load_with_progress(model, backend, scheme, threads)
        ids = engine.encode(source, settle_chat(engine, source, not no_chat, system), system)
        options = engine.options(**decoding)
        engine.check_fits(len(ids), options.max_tokens)
        canvas = [*ids, *[engine.model.facts.mask_id] * options.max_tokens]
        with watch.steps(engine, canvas, len(ids), options, as_json) as on_step:
            answer = engine.generate_batch([ids], on_step=on_step, **decoding)[0]
    if as_json:
        write_json({"model": model, **answer.to_dict()})
    elif answer.text is None:
        write_ids(answer.tokens[answer.prompt_tokens :][: answer.useful_tokens])
    else:
        write_text(answer.text)
    if verbose:
        from .summary import print_summary

        print_summary(answer, engine)


def load_with_progress(model: str, backend: str | None, scheme: str | None, threads: int | None) -> Engine:
    """`dllm_core.load` with a bar on stderr when it takes long."""
    from ..api import load
    from .progress import Progress

    with Progress("loading", sys.stderr) as bar:
        return load(model, backend=backend, scheme=scheme, threads=threads, progress=bar.update, warn=settings().warn)


def settle_chat(engine: Engine, source: str | list[int], chat: bool, system: str | None = None) -> bool:
    """Whether the chat template is used: a model without one takes the text as it is, with one warning."""
    tokenizer = engine.tokenizer
    if isinstance(source, str) and chat and tokenizer is not None and tokenizer.chat_template is None:
        if system is not None:
            raise UsageError(f"--system needs a chat template, model {engine.name} has none")
        settings().warn(f"model {engine.name} has no chat template: the text is continued as it is (--no-chat)")
        return False
    return chat
