"""Turns tasks into training batches: chat form, EOS tail of random length, masks, loss weights."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from . import tasks, vocabulary

# Row length -> rows, about 3,000 tokens each. One length per batch, so nothing is padding: the EOS tail
# fills the row and is part of the answer, as in LLaDA's fine-tuning.
BUCKETS = {32: 96, 48: 64, 64: 48, 88: 36}
BLOCK = 8


@dataclass
class Batch:
    """One rectangular batch. All arrays are [B, T] but `task`, which is [B] (index into TASKS)."""

    clean: np.ndarray  # int64 token ids
    noisy: np.ndarray  # int64, masked positions hold the mask id
    weight: np.ndarray  # float32 loss weight, 0 where nothing is predicted
    answer: np.ndarray  # bool, masked positions inside the answer proper (before the EOS tail)
    task: np.ndarray  # int64


class Encoder:
    """Chat form of one example: (prompt ids, answer ids with the closing <|eot_id|>)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.mask = tokenizer.token_to_id(vocabulary.MASK)
        self.eos = tokenizer.token_to_id(vocabulary.EOS)
        self.eot = tokenizer.token_to_id("<|eot_id|>")

    def prompt(self, text: str) -> list[int]:
        chat = (
            f"<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )
        return list(self.tokenizer.encode(chat, add_special_tokens=False).ids)

    def answer(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False).ids, self.eot]


def _choose_masks(r: random.Random, t: float, prompt: int, answer: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(mask, weight) of one row.

    Half of the rows follow LLaDA: every position of answer and tail is masked with probability t. The
    other half looks like a block decoder's canvas: clean left of a block, masked right of it, t inside.
    LLaDA's 1/t weight is replaced by the mean over masked positions, which has the same minimiser
    and less variance; the EOS tail, which is learned at once, counts a tenth. A row counts by the root of its
    answer's length, so that one-number answers are not drowned by stories.
    """
    weight = np.ones(length, np.float32)
    weight[prompt + answer + 1 :] = 0.1
    u = np.array([r.random() for _ in range(length)])
    mask = u < t
    if r.random() < 0.5:
        start = prompt + BLOCK * r.randrange((answer + BLOCK) // BLOCK)
        mask[:start] = False
        mask[start + BLOCK :] = True
        weight[start + BLOCK :] *= 0.2
        if not mask[start : start + BLOCK].any():
            mask[min(start + r.randrange(BLOCK), prompt + answer)] = True
    elif not mask[prompt : prompt + answer].any():
        mask[prompt + r.randrange(answer)] = True
    if r.random() >= 0.1:  # in a tenth of the rows the question is masked too
        mask[:prompt] = False
    else:
        mask[:5] = False
        weight[:prompt] *= 0.3
    return mask, weight * mask / answer**0.5


def stream(encoder: Encoder, seed: int, shares: dict[str, float]) -> Iterator[Batch]:
    """Endless batches. `shares` (task -> share) may be changed by the caller while the stream runs."""
    r = random.Random(seed)
    names = list(tasks.TASKS)
    queues: dict[int, list[tuple]] = defaultdict(list)
    while True:
        name = r.choices(names, [shares[n] for n in names])[0]
        question, reply = tasks.sample(name, r)
        prompt, answer = encoder.prompt(question), encoder.answer(reply)
        fits = [n for n in BUCKETS if n >= len(prompt) + len(answer) + 1]
        length = r.choices(fits, [n**-3 for n in fits])[0]  # mostly the shortest: a tail is soon learned
        queues[length].append((names.index(name), prompt, answer))
        if len(queues[length]) == BUCKETS[length]:
            yield _assemble(encoder, r, length, queues.pop(length))


def _assemble(encoder: Encoder, r: random.Random, length: int, rows: list[tuple]) -> Batch:
    clean = np.full((len(rows), length), encoder.eos, np.int64)
    mask = np.zeros(clean.shape, bool)
    weight = np.zeros(clean.shape, np.float32)
    inside = np.zeros(clean.shape, bool)
    offset = r.random()
    for i, (_, prompt, answer) in enumerate(rows):
        n, m = len(prompt), len(answer)
        clean[i, : n + m] = prompt + answer
        t = (offset + i / len(rows)) % 1.0  # stratified over the batch: less variance
        mask[i], weight[i] = _choose_masks(r, t, n, m, length)
        inside[i, n : n + m] = mask[i, n : n + m] & ~mask[i, :n].any()
    noisy = np.where(mask, encoder.mask, clean)
    return Batch(clean, noisy, weight, inside, np.array([row[0] for row in rows]))
