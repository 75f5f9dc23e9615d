"""The decoding options: one row for every field of `DecodeOptions`, shared by the verbs that decode."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import click

from ..decoding.options import CHOICES, REAL, DecodeOptions, check_value, flag
from ..errors import UsageError
from .grouped import GroupedOption
from .options import Decorator, Ids, Name

CANVAS, CHOOSING, COMMITTING = "Canvas and steps", "Which token", "How many tokens a pass"
FASTER, CORRECTING, ENDING = "Rows a pass runs", "Taking tokens back", "Where it ends"
ENTROPY = "--commit entropy-bound or entropy-exit"


@dataclass(frozen=True)
class Row:
    """Help of one option. `belongs` names the setting that it goes with."""

    group: str
    text: str
    belongs: str = ""
    metavar: str = "N"
    names: tuple[str, ...] = ()  # beside the field's own


ROWS = {
    "max_tokens": Row(CANVAS, "Length of the canvas after the prompt; with --grow its limit.", names=("-n",)),
    "steps": Row(CANVAS, "Forward passes over all blocks; one token a pass if not given."),
    "block_length": Row(CANVAS, "Blocks are filled from left to right."),
    "schedule": Row(CANVAS, "How the tokens spread over the steps; timesteps is Dream's sampler."),
    "eps": Row(CANVAS, "Last timestep.", "--schedule timesteps", "X"),
    "seed": Row(CANVAS, "Same seed, same text."),
    "temperature": Row(CHOOSING, "Gumbel noise; 0 takes the likeliest.", metavar="X", names=("--temp",)),
    "top_p": Row(CHOOSING, "Only the likeliest tokens that make up this share.", metavar="X"),
    "top_k": Row(CHOOSING, "Only this many of the likeliest tokens; 0 is off."),
    "cfg_scale": Row(CHOOSING, "Classifier-free guidance; 0 is off. Two passes in one.", metavar="X"),
    "suppress_ids": Row(CHOOSING, "Token ids that are never written.", metavar="1,2,3"),
    "commit": Row(COMMITTING, "Commit a fixed number, or all that are sure enough. See dllm strategies."),
    "threshold": Row(COMMITTING, "Confidence from which a token is committed.", "--commit threshold", "X"),
    "factor": Row(COMMITTING, "How much doubt a set of tokens may have together.", "--commit factor", "X"),
    "gamma": Row(COMMITTING, "Entropy in nats that a set, or a token, may have.", ENTROPY, "X"),
    "remasking": Row(COMMITTING, "What confidence is, and so which tokens are committed first."),
    "alg_temp": Row(COMMITTING, "Noise on that order; 0 is none.", "--schedule timesteps", "X"),
    "cache": Row(FASTER, "Keep keys and values: prefix and dual are Fast-dLLM's, interstep is approximate."),
    "refresh": Row(FASTER, "Every how many passes all rows run.", "--cache interstep"),
    "all_rows": Row(FASTER, "Score every row that runs, not only the candidates; changes no token."),
    "revoke": Row(CORRECTING, "Make committed tokens masks again: the doubted ones, or by chance."),
    "revoke_below": Row(CORRECTING, "Confidence below which a token is taken back.", "--revoke confidence", "X"),
    "revoke_rate": Row(CORRECTING, "Chance of a token to be taken back, each pass.", "--revoke remdm", "X"),
    "revoke_limit": Row(CORRECTING, "How often one position may be taken back."),
    "eos": Row(ENDING, "End tokens: keep going behind them, stop there, or forbid them."),
    "eos_penalty": Row(ENDING, "Subtracted from the logits of the end tokens.", metavar="X"),
    "stop": Row(ENDING, "End where this text appears; repeatable.", metavar="TEXT"),
    "grow": Row(ENDING, "Add block after block until the end token, with --eos stop."),
    "logits_eos_inf": Row(ENDING, "Never write the end-of-text token (LLaDA's option)."),
    "confidence_eos_eot_inf": Row(ENDING, "Commit end tokens last (LLaDA's option)."),
}


def _strategies() -> list[tuple[str, str]]:
    from ..plugins import load_registry

    return [(name, strategy.summary) for name, strategy in sorted(load_registry().strategies.items())]


def option(field: dataclasses.Field[Any]) -> Decorator:
    """The click option of one field. Its default is None, not given, so that the model's own can count."""
    key, row = field.name, ROWS[field.name]
    given: dict[str, Any] = {"metavar": row.metavar, "type": float if key in REAL else int}
    if key in CHOICES:
        given = {"type": click.Choice(CHOICES[key])}
    elif isinstance(field.default, bool):
        given = {"is_flag": True}
    elif key == "stop":
        given = {"metavar": row.metavar, "multiple": True}
    elif key == "suppress_ids":
        given = {"metavar": row.metavar, "type": Ids()}
    text = f"{row.belongs}: {row.text[0].lower()}{row.text[1:]}" if row.belongs else row.text
    if isinstance(field.default, str | int | float) and not isinstance(field.default, bool):
        text += f" [{field.default}]"
    return click.option(
        flag(key), *row.names, key, cls=GroupedOption, group=row.group, help=text, default=None, **given
    )


def decoding_options(without: Collection[str] = ()) -> Decorator:
    """Add --strategy and an option for every field of `DecodeOptions`. The function gets them as the dict `decoding`,
    None where not given, every value checked by itself."""
    fields = {f.name: f for f in dataclasses.fields(DecodeOptions) if f.name not in without}
    keys = ["strategy", *fields]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gathered(**given: Any) -> Any:
            alias = given.pop("max_tokens_alias", None)
            decoding = {key: given.pop(key) for key in keys}
            decoding |= {key: decoding.get(key) or None for key in ("stop", "suppress_ids") if key in keys}
            if alias is not None:
                decoding["max_tokens"] = _one_length(decoding["max_tokens"], alias)
            check_early(decoding)
            return function(decoding=decoding, **given)

        options = [strategy_option, *(option(fields[key]) for key in ROWS if key in fields)]
        if "max_tokens" in fields:
            options.append(click.option("--n-predict", "--gen-length", "max_tokens_alias", type=int, hidden=True))
        for add in reversed(options):
            gathered = add(gathered)
        return gathered

    return decorate


def strategy_option(command: Any) -> Any:
    return click.option(
        "--strategy",
        cls=GroupedOption,
        group=CANVAS,
        type=Name(_strategies),
        metavar="NAME",
        help="A named set of the options below, see dllm strategies; what is given beside it counts more.",
    )(command)


def check_early(decoding: dict[str, Any]) -> None:
    """Refuse a bad value before the model is read. Relations between values need the model's defaults: later."""
    for key, value in decoding.items():
        if key == "strategy":
            if value is not None:
                _check_strategy(value)
        elif value is not None:
            check_value(key, tuple(value) if isinstance(value, list) else value)


def _check_strategy(name: str) -> None:
    from ..decoding.strategies import find
    from ..plugins import load_registry

    find(name, load_registry().strategies)


def _one_length(given: int | None, alias: int) -> int:
    if given is not None and given != alias:
        raise UsageError(f"--max-tokens {given} and its other name {alias} differ", "give one of them")
    return alias
