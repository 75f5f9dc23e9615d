"""`dllm fill`: write into the masks of a text."""

from __future__ import annotations

from typing import Any

import click

from ..errors import UsageError
from .decoding import decoding_options
from .grouped import GroupedCommand
from .options import engine_options, ids_option, json_option
from .output import write_ids, write_json, write_text
from .run import load_with_progress, settle_chat
from .text import read_prompt
from .watch import Watch, watch_options

EXAMPLE = 'dllm fill "Monday, [MASK:3], Wednesday"'  # of a text without --prompt


@click.command(cls=GroupedCommand, short_help="Fill the masks of a text.")
@click.argument("template", nargs=-1)
@engine_options
@click.option("--prompt", metavar="TEXT", help="The template is the answer to this prompt, in the chat template.")
@click.option("--system", "-s", metavar="TEXT", help="System message of the chat template (with --prompt).")
@ids_option("Token ids with mask ids inside, instead of a text; needs no tokenizer.")
@click.option("--no-stdin", is_flag=True, help="Leave standard input alone.")
@watch_options
@click.option("--verbose", "-v", is_flag=True, help="Report times, passes and memory at the end.")
@json_option
@decoding_options(without=("max_tokens", "stop", "grow"))
def command(
    template: tuple[str, ...],
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    prompt: str | None,
    system: str | None,
    prompt_ids: list[int] | None,
    no_stdin: bool,
    watch: Watch,
    verbose: bool,
    as_json: bool,
    decoding: dict[str, Any],
) -> None:
    """Fill the masks of TEMPLATE and print the whole text. [MASK:8] is room for 8 tokens, [MASK] for one.

    \b
      dllm fill '{"name": "Anna", "age": [MASK:2]' --prompt "Extract: Anna is a 31 year old baker from Oslo."
      dllm fill - < form.txt --visual

    Text outside the masks stays as it is, character for character. Without --prompt it is no chat: the model sees
    the template alone. All masks are one block unless --block-length says otherwise, and one token is written a
    pass. Text piped to standard input is put before TEMPLATE; TEMPLATE - is standard input alone.
    """
    if system is not None and prompt is None:
        raise UsageError("--system is part of the chat template", "add --prompt")
    source = read_prompt(template, prompt_ids, not no_stdin, EXAMPLE)
    with watch.opened():
        engine = load_with_progress(model, backend, scheme, threads)
        chat = prompt is not None and settle_chat(engine, prompt, True, system)
        found = engine.template(source, prompt, chat, system)
        options = engine.fill_options(found, **decoding)
        with watch.steps(engine, found.ids, 0, options, as_json) as on_step:
            filled = engine.fill(found, on_step=on_step, **decoding)
    if as_json:
        write_json({"model": model, **filled.to_dict()})
    elif filled.text is None:
        write_ids(filled.tokens)
    else:
        write_text(filled.text)
    if verbose:
        from .summary import print_summary

        print_summary(filled, engine)
