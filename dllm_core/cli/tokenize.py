"""`dllm tokenize`: text to token ids and back. Reads no weights."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import CheckpointError, UsageError, quote
from .options import ids_option, json_option, model_option
from .output import write_ids, write_json, write_table, write_text
from .terminal import settings
from .text import read_prompt

EXAMPLE = 'dllm tokenize "What is 217 + 384?"'


@click.command(short_help="Text to token ids and back.")
@click.argument("text", nargs=-1)
@model_option
@click.option("--chat", is_flag=True, help="Put the text into the chat template first.")
@click.option("--system", "-s", metavar="TEXT", help="System message of the chat template (with --chat).")
@ids_option("Token ids to turn into text.")
@click.option("--pieces", is_flag=True, help="One line a token: its id and its text.")
@click.option("--no-stdin", is_flag=True, help="Leave standard input alone.")
@json_option
def command(
    text: tuple[str, ...],
    model: str,
    chat: bool,
    system: str | None,
    prompt_ids: list[int] | None,
    pieces: bool,
    no_stdin: bool,
    as_json: bool,
) -> None:
    """Print the token ids of TEXT, or the text of --prompt-ids.

    On a model folder without a tokenizer, --prompt-ids checks the ids and prints them unchanged.
    """
    from ..plugins import load_registry
    from ..resolve import resolve
    from ..tokenizer import Tokenizer, need_tokenizer

    if prompt_ids is not None and chat:
        raise UsageError("--chat needs a text, but --prompt-ids is given", "drop one of them")
    if system is not None and not chat:
        raise UsageError("--system is part of the chat template", "add --chat")
    source = read_prompt(text, prompt_ids, not no_stdin, EXAMPLE)
    path = resolve(model, load_registry())
    rows = embedding_rows(path)
    tokenizer = Tokenizer.from_folder(path, rows)
    if isinstance(source, str):
        found = need_tokenizer(tokenizer)
        messages = [{"role": "system", "content": system}] if system is not None else []
        ids = found.encode_chat([*messages, {"role": "user", "content": source}]) if chat else found.encode(source)
    else:
        ids = checked(source, rows)
    decoded = None if tokenizer is None else tokenizer.decode(ids, skip_special=False)
    parts = None if tokenizer is None else [tokenizer.token_text(i) for i in ids]
    if as_json:
        write_json({"model": model, "ids": ids, "pieces": parts, "text": decoded})
    elif pieces:
        shown = parts or ["(no tokenizer)"] * len(ids)
        write_table(
            ["id", "text"], [(str(i), quote(p) if parts else p) for i, p in zip(ids, shown, strict=True)], ["id"]
        )
    elif isinstance(source, str) or decoded is None:
        if decoded is None:
            settings().warn(f"model {model} has no tokenizer: the ids are printed unchanged")
        write_ids(ids)
    else:
        write_text(decoded)


def embedding_rows(path: Path) -> int:
    """Rows of the embedding by config.json: what an id must stay below."""
    from ..checkpoint.files import read_object, require_file
    from ..checkpoint.folder import WHAT

    require_file(path / "config.json", WHAT)
    config = read_object(path / "config.json")
    for key in ("embedding_size", "vocab_size"):
        value = config.get(key)
        if type(value) is int and value > 0:
            return value
    raise CheckpointError(f"{path / 'config.json'} has vocab_size={quote(config.get('vocab_size'))}, not a size")


def checked(ids: list[int], rows: int) -> list[int]:
    """`ids`; UsageError for one outside the vocabulary."""
    for i in ids:
        if not 0 <= i < rows:
            raise UsageError(f"token id {i} is outside the vocabulary", f"ids go from 0 to {rows - 1}")
    return ids
