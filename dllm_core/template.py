"""Templates to fill: text with [MASK] and [MASK:n], or token ids with mask ids inside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import UsageError, quote
from .tokenizer import Tokenizer

MARK = r"\[MASK(?::([^\[\]]*))?\]"


@dataclass(frozen=True)
class Template:
    """`ids` hold the mask id where text is wanted, `masks` times. `parts` are (literal text, or None for masks;
    number of tokens) of a text template in order; None for a template of ids."""

    ids: list[int]
    masks: int
    parts: list[tuple[str | None, int]] | None = None

    def text(self, tokens: Sequence[int], tokenizer: Tokenizer) -> str:
        """The template filled from the canvas `tokens`: literal text exactly as it was given."""
        if self.parts is None:
            return tokenizer.decode(tokens)
        found, at = "", 0
        for literal, length in self.parts:
            at += length
            if literal is None:  # decoded with what stands before: some tokenizers drop the space of a first token
                before = tokenizer.decode(tokens[: at - length])
                literal = tokenizer.decode(tokens[:at])[len(before) :]
            found += literal
        return found


def from_text(text: str, tokenizer: Tokenizer, room: int, prompt: Sequence[int] | None = None) -> Template:
    """The template of a text, after the ids of a prompt if there is one, whose text is no part of it; `room` is the
    most tokens that the model has place for.

    Every literal text is tokenized by itself, so that no token reaches over the edge of a mask.
    """
    mask = tokenizer.mask_id
    ids = list(tokenizer.encode("") if prompt is None else prompt)  # the bos token, where the tokenizer adds one
    parts: list[tuple[str | None, int]] = [("", len(ids))]
    for piece in split(text, tokenizer.token_text(mask), room):
        found = tokenizer.encode(piece, bos=False) if isinstance(piece, str) else [mask] * piece
        ids += found
        parts.append((piece if isinstance(piece, str) else None, len(found)))
        if len(ids) > room:
            raise UsageError(
                f"the template has more tokens than the model's limit of {room}", "shorten it or ask for fewer masks"
            )
    return Template(ids, ids.count(mask), parts)


def from_ids(ids: Sequence[int], mask: int, prompt: Sequence[int] | None = None) -> Template:
    """The template of ids with mask ids inside, after those of a prompt."""
    whole = [*(prompt or []), *ids]
    parts = None if prompt is None else list[tuple[str | None, int]]([("", len(prompt)), (None, len(ids))])
    return Template(whole, whole.count(mask), parts)


def split(text: str, mask: str, room: int) -> Iterator[str | int]:
    """Literal texts and numbers of masks, in order. The text of the mask token itself, `mask`, is one mask."""
    at = 0
    for mark in re.finditer(f"{MARK}|{re.escape(mask)}", text):
        if mark.start() > at:
            yield text[at : mark.start()]
        yield _count(mark, room)
        at = mark.end()
    if at < len(text):
        yield text[at:]


def _count(mark: re.Match[str], room: int) -> int:
    digits = "1" if mark[1] is None else mark[1].strip()
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        raise UsageError(f"{quote(mark[0])} is no number of masks", "write [MASK] for one or [MASK:n] for n tokens")
    if len(digits) > 18 or int(digits) > room:
        raise UsageError(f"{quote(mark[0])} exceeds the model's limit of {room} tokens", "ask for fewer masks")
    return int(digits)
