"""`dllm run`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..decoding.options import REMASKING, DecodeOptions
from ..errors import UsageError
from .options import engine_options, ids_option, json_option
from .output import write_ids, write_json, write_text
from .terminal import settings
from .text import read_prompt

if TYPE_CHECKING:
    from ..api import Engine, Generation

EXAMPLE = 'dllm run "What is 217 + 384?"'


def decoding_options(command: Any) -> Any:
    """The fields of `DecodeOptions`; None means not given, so that the model's own defaults can count."""
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    real: dict[str, Any] = {"type": float, "metavar": "X"}
    options = [
        click.option("--max-tokens", "-n", help="Length of the canvas; the model's own, else 128.", **number),
        click.option("--n-predict", "--gen-length", "max_tokens_alias", hidden=True, **number),
        click.option("--steps", help="Forward passes over all blocks; one token a step if not given.", **number),
        click.option("--block-length", help="Blocks fill from left to right; the model's own, else 32.", **number),
        click.option("--temperature", "--temp", help="Gumbel noise; 0, the default, takes the likeliest.", **real),
        click.option(
            "--remasking", type=click.Choice(REMASKING), help="Which positions are kept; low_confidence by default."
        ),
        click.option("--cfg-scale", help="Classifier-free guidance; 0, the default, is off.", **real),
        click.option("--logits-eos-inf", is_flag=True, default=None, help="Never write the end-of-text token."),
        click.option("--confidence-eos-eot-inf", is_flag=True, default=None, help="Commit end tokens last."),
        click.option("--seed", help="Same seed, same text; 0 by default.", **number),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="Answer a prompt.")
@click.argument("prompt", nargs=-1)
@engine_options
@decoding_options
@click.option("--system", "-s", metavar="TEXT", help="System message of the chat template.")
@click.option("--no-chat", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@ids_option("Token ids instead of a text; needs no tokenizer.")
@click.option("--no-stdin", is_flag=True, help="Leave standard input alone.")
@click.option("--visual", is_flag=True, help="Show the canvas at every step.")
@click.option(
    "--pace",
    type=click.FloatRange(0, 60),
    metavar="S",
    help="With --visual: hold every step S seconds.",
)
@click.option("--verbose", "-v", is_flag=True, help="Report times, passes and memory at the end.")
@json_option
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
    visual: bool,
    pace: float | None,
    verbose: bool,
    as_json: bool,
    max_tokens_alias: int | None,
    **decoding: Any,
) -> None:
    """Answer PROMPT. Text piped to standard input is put before it; PROMPT - is standard input alone.

    \b
      dllm run "What is 217 + 384?"
      dllm run --visual "Sort 41 7 93 22"
      cat notes.txt | dllm run "Extract: Anna is a 31 year old baker from Oslo." --json

    The answer goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 not found,
    4 does not fit in memory, 6 not supported, 130 interrupted.
    """
    decoding["max_tokens"] = _one_length(decoding["max_tokens"], max_tokens_alias)
    check_early(decoding)
    chat = not no_chat
    if system is not None and (no_chat or prompt_ids is not None):
        raise UsageError("--system needs the chat template", "drop --no-chat or --prompt-ids, or put the text yourself")
    if pace is not None and not visual:
        raise UsageError("--pace holds the steps of a view, but there is none", "add --visual")
    source = read_prompt(prompt, prompt_ids, not no_stdin, EXAMPLE)
    engine = load_with_progress(model, backend, scheme, threads)
    ids = _encode(engine, source, chat, system)
    answer = _generate(engine, ids, decoding, (pace or 0.0) if visual else None, as_json)
    if as_json:
        write_json({"model": model, **answer.to_dict()})
    elif answer.text is None:
        write_ids(answer.tokens[answer.prompt_tokens :][: answer.useful_tokens])
    else:
        write_text(answer.text)
    if verbose:
        from .summary import print_summary

        print_summary(answer, engine)


def check_early(decoding: dict[str, Any]) -> None:
    """Refuse a bad value before the model is read. Relations between values need the model's defaults: later."""
    for key, value in decoding.items():
        if value is not None:
            DecodeOptions(**{"block_length": sys.maxsize, key: value})


def load_with_progress(model: str, backend: str | None, scheme: str | None, threads: int | None) -> Engine:
    """`dllm_core.load` with a bar on stderr when it takes long."""
    from ..api import load
    from .progress import Progress

    with Progress("loading", sys.stderr) as bar:
        return load(model, backend=backend, scheme=scheme, threads=threads, progress=bar.update)


def _one_length(given: int | None, alias: int | None) -> int | None:
    if given is not None and alias is not None and given != alias:
        raise UsageError(f"--max-tokens {given} and its other name {alias} differ", "give one of them")
    return alias if given is None else given


def _encode(engine: Engine, source: str | list[int], chat: bool, system: str | None) -> list[int]:
    """The prompt's ids; a model without a chat template gets the text as it is, with one warning."""
    if isinstance(source, str) and chat and engine.tokenizer is not None and engine.tokenizer.chat_template is None:
        if system is not None:
            raise UsageError(f"--system needs a chat template, model {engine.name} has none")
        settings().warn(f"model {engine.name} has no chat template: the text is continued as it is (--no-chat)")
        chat = False
    return engine.encode(source, chat, system)


def _generate(
    engine: Engine, ids: list[int], decoding: dict[str, Any], pace: float | None, as_json: bool
) -> Generation:
    """The answer; `pace` is None without a view."""
    from .progress import Progress
    from .visual import open_view

    if pace is None:
        total = engine.options(**decoding).total_steps
        with Progress("step", sys.stderr) as bar:
            return engine.generate_batch([ids], on_step=lambda step: bar.update(step.index + 1, total), **decoding)[0]
    with open_view(engine, ids, engine.options(**decoding), pace, as_json) as view:
        return engine.generate_batch([ids], on_step=view.show, **decoding)[0]
