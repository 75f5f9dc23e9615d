"""`dllm score`: how likely an answer is."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from ..decoding.options import check_value
from ..errors import UsageError, quote
from .options import Ids, engine_options, ids_option, json_option
from .output import write_json, write_table
from .run import load_with_progress, settle_chat

if TYPE_CHECKING:
    from ..decoding.likelihood import Likelihood

EXAMPLE = 'dllm score "What is 217 + 384?" 601'


@click.command(short_help="How likely an answer is.")
@click.argument("texts", nargs=-1, metavar="PROMPT ANSWER")
@engine_options
@click.option("--samples", type=click.IntRange(1), default=128, show_default=True, help="Masked copies of the answer.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="How many of them run together; fewer need less memory.",
)
@click.option("--cfg-scale", type=float, default=0.0, metavar="X", help="Classifier-free guidance; 0 is off.")
@click.option("--seed", type=int, default=0, metavar="N", help="Same seed, same masks.")
@click.option("--greedy", is_flag=True, help="Also decode greedily, one token a pass, and compare.")
@click.option("--no-chat", is_flag=True, help="Take PROMPT as it is, without the chat template.")
@ids_option("Token ids instead of PROMPT; needs no tokenizer.")
@click.option("--answer-ids", type=Ids(), metavar="1,2,3", help="Token ids instead of ANSWER.")
@json_option
def command(
    texts: tuple[str, ...],
    model: str,
    backend: str | None,
    scheme: str | None,
    threads: int | None,
    samples: int,
    batch: int,
    cfg_scale: float,
    seed: int,
    greedy: bool,
    no_chat: bool,
    prompt_ids: list[int] | None,
    answer_ids: list[int] | None,
    as_json: bool,
) -> None:
    """Estimate log p(ANSWER | PROMPT) from below, in nats, and how exact the estimate is.

    \b
      dllm score "What is 217 + 384?" 601
      dllm score "The sky is" " blue." --no-chat -m ~/models/LLaDA-8B-Base

    Random tokens of the answer are masked, the model is asked for them, and their losses are averaged: the bound that
    diffusion models are trained with. More --samples make it more exact. Without a chat template blanks between
    PROMPT and ANSWER belong to the answer.
    """
    check_value("cfg_scale", cfg_scale)
    check_value("seed", seed)
    batch = min(batch, samples)
    if samples % batch:
        near = samples // batch * batch
        raise UsageError(f"--samples {samples} is no multiple of --batch {batch}", f"try --samples {near}")
    prompt, answer = pair(texts, prompt_ids, answer_ids)
    engine = load_with_progress(model, backend, scheme, threads)
    chat = settle_chat(engine, prompt, not no_chat)
    ids, wanted = engine.encode_pair(prompt, answer, chat)
    from .progress import Progress

    with Progress("sampling", sys.stderr) as bar:
        found = engine.score(
            ids, wanted, samples=samples, batch=batch, cfg_scale=cfg_scale, seed=seed, progress=bar.update
        )
    facts = {**describe(found, len(wanted), samples), "prompt_tokens": len(ids), "seed": seed}
    if greedy:
        own = engine.greedy(ids, wanted, cfg_scale=cfg_scale)
        facts["greedy"] = {"match": own.match, "tokens": own.tokens, "text": own.text}
    if as_json:
        where = {"backend": engine.backend.name, "isa": engine.backend.isa, "scheme": engine.model.scheme}
        write_json({"model": model, **facts, **where, "answer_ids": wanted})
    else:
        write_table(["", ""], lines(facts), header=False)


def pair(
    texts: tuple[str, ...], prompt_ids: list[int] | None, answer_ids: list[int] | None
) -> tuple[str | list[int], str | list[int]]:
    """Prompt and answer, each as text or as ids."""
    rest = list(texts)
    found: list[str | list[int]] = []
    for name, ids in (("PROMPT", prompt_ids), ("ANSWER", answer_ids)):
        if ids is not None:
            found.append(ids)
        elif rest:
            found.append(rest.pop(0))
        else:
            raise UsageError(f"{name} is missing", f"for example: {EXAMPLE}")
    if rest:
        raise UsageError(f"{quote(rest[0])} is one argument too many", f"quote the texts: {EXAMPLE}")
    return found[0], found[1]


def describe(found: Likelihood, tokens: int, samples: int) -> dict[str, Any]:
    """The estimate as JSON fields. Without a second batch there is no standard error."""
    bound = found.log_likelihood
    return {
        "log_likelihood": bound,
        "standard_error": found.standard_error if len(found.losses) > 1 else None,
        "per_token": bound / tokens,
        "perplexity": math.exp(min(-bound / tokens, 700.0)),
        "answer_tokens": tokens,
        "samples": samples,
    }


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of every line."""
    error = facts["standard_error"]
    exactness = "unknown: one batch" if error is None else f"{error:.4f}"
    found = [
        ("log likelihood", f"{facts['log_likelihood']:.4f} nats, a lower bound"),
        ("standard error", f"{exactness}, {facts['samples']} samples"),
        ("per token", f"{facts['per_token']:.4f} nats, perplexity {facts['perplexity']:.2f}"),
        ("tokens", f"{facts['answer_tokens']} in the answer, {facts['prompt_tokens']} in the prompt"),
    ]
    if "greedy" in facts:
        own = facts["greedy"]
        said = ",".join(map(str, own["tokens"])) if own["text"] is None else quote(own["text"])
        found.append(("greedy", "the same answer" if own["match"] else f"another answer: {said}"))
    return found
