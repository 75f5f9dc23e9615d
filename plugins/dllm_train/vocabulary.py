"""Builds the tokenizer of the model inside: whole words where the tasks repeat them, bytes elsewhere."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from . import tasks, words

# LLaDA's names, in the order of their ids here.
SPECIAL = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|mdm_mask|>",
]
BOS, EOS, MASK = "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def build_tokenizer(samples: int = 40000, seed: int = 7, at_least: int = 40) -> Tokenizer:
    """Count the words that the tasks produce and keep the frequent ones; everything else is spelled in bytes.

    Byte-pair encoding without merges and with `ignore_merges` is exactly that: a piece which is in the
    vocabulary is one token, any other piece falls apart into its bytes.
    """
    r = random.Random(seed)
    splitter = _splitter()
    spelled = set(words.SPELLING)
    counts: dict[str, int] = {}
    names = list(tasks.TASKS)
    for _ in range(samples):
        for text in tasks.sample(r.choice(names), r):
            for piece, _ in splitter.pre_tokenize_str(text):
                counts[piece] = counts.get(piece, 0) + 1
    closed = [*words.DAYS, *words.MONTHS, *words.NAMES, *words.JOBS, *words.CITIES, *words.PLACES]
    closed += [*words.ANIMALS, *words.COLOURS, *" ".join([*words.CAPITALS, *words.CAPITALS.values()]).split()]
    for piece in ["user", "assistant", "system", "\u010a\u010a", *closed, *("\u0120" + word for word in closed)]:
        counts[piece] = samples
    kept = sorted(
        piece
        for piece, n in counts.items()
        if n >= at_least and len(piece) > 1 and re.sub("^\u0120", "", piece).lower() not in spelled
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(SPECIAL + alphabet + kept)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json as a Hugging Face folder has them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "add_bos_token": False,
        "add_eos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
