"""Text to token ids and back: tokenizer.json, special tokens and the chat template of a model folder."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .checkpoint.files import read_object, read_text, require_file
from .errors import CheckpointError, UsageError, quote

# Names that mean the same where tokenizer_config.json does not say: LLaDA's first, then Dream's.
MASK_NAMES = ("<|mdm_mask|>", "<|mask|>")
EOT_NAMES = ("<|eot_id|>", "<|im_end|>")
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class Template(NamedTuple):
    """A chat template and the file that it stands in."""

    source: str
    file: str


class Tokenizer:
    """The tokenizer of a model folder. Ids run over the `vocab_size` rows of the embedding, which may be more than
    the tokenizer uses; special ids are None where there is no such token, `mask_id` always exists."""

    def __init__(
        self, core: Any, settings: Mapping[str, Any], template: Template | None, mask: int | None, rows: int
    ) -> None:
        """Of a `tokenizers.Tokenizer`, tokenizer_config.json, config.json's mask_token_id and the embedding's rows."""
        self._core = core
        self.vocab_size = rows
        self.chat_template = template
        self.special_tokens = {key: text for key in NAMED if (text := _special(settings, key)) is not None}
        self.bos_id = self._id("bos_token")
        self.eos_id = self._id("eos_token")
        self.eot_id = next((i for i in map(core.token_to_id, EOT_NAMES) if i is not None), None)
        self.mask_id = self._mask(mask)
        self._adds_bos = settings.get("add_bos_token") is True
        if self._adds_bos and self.bos_id is None:
            raise CheckpointError("tokenizer_config.json has add_bos_token=true, but tokenizer.json has no bos_token")

    @classmethod
    def from_folder(cls, path: str | Path, vocab_size: int) -> Tokenizer | None:
        """The tokenizer of the folder, or None if it has no tokenizer.json (see `need_tokenizer`).

        CheckpointError if its files are damaged, name no mask token or disagree with config.json.
        """
        path = Path(path)
        if not (path / "tokenizer.json").exists():
            return None
        settings = read_object(path / "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
        config = read_object(path / "config.json") if (path / "config.json").exists() else {}
        core = _load(path / "tokenizer.json")
        highest = max(core.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest >= vocab_size:
            raise CheckpointError(
                f"{path / 'tokenizer.json'} has token id {highest}, but the model has only {vocab_size} embeddings",
                "tokenizer and weights are from different models",
            )
        mask = config.get("mask_token_id")
        if mask is not None and (type(mask) is not int or not 0 <= mask < vocab_size):
            raise CheckpointError(f"config.json: mask_token_id={quote(mask)} is no id below {vocab_size}")
        return cls(core, settings, _find_template(path, settings), mask, vocab_size)

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """Token ids of `text`; names of special tokens inside it count as those tokens.

        Nothing is added but the bos token where tokenizer_config.json says add_bos_token; not with `bos` false, for
        text that continues other text.
        """
        ids = self._pieces(text)
        return [self.bos_id, *ids] if bos and self._adds_bos and self.bos_id is not None else ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of the rendered conversation; the template has placed all special tokens."""
        return self._pieces(self.render_chat(messages, add_generation_prompt))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`. Rows of the embedding beyond the tokenizer's own ids have no text."""
        return _guard(
            "tokenizer.json cannot decode", self._core.decode, self.check_ids(ids), skip_special_tokens=skip_special
        )

    def token_text(self, token: int) -> str:
        """One token for display: its text, the name of a special token, "<id 7>" where there is none."""
        name = self._core.id_to_token(*self.check_ids([token]))
        if name is None:
            return f"<id {token}>"
        if name.startswith("\u2581"):  # SentencePiece's space, which its decoder strips from a lone token
            return name.replace("\u2581", " ")
        return self.decode([token], skip_special=False) or name

    def render_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation [{role, content}, ...] as the model was trained to see it.

        UsageError if the model has no chat template, CheckpointError if the template fails.
        """
        if self.chat_template is None:
            raise UsageError("this model has no chat template", "--no-chat sends the prompt as it is")
        for message in messages:
            if not all(isinstance(message.get(key), str) for key in ("role", "content")):
                raise UsageError(f"a message must have role and content as text, not {quote(dict(message))}")
        from .chat_template import render

        given = {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        empty = {"tools": None, "documents": None}
        return render(*self.chat_template, {**self.special_tokens, **empty, **given})

    def check_ids(self, ids: Sequence[int]) -> list[int]:
        """`ids` as plain whole numbers; UsageError for one outside the vocabulary."""
        plain = [operator.index(i) for i in ids]
        for i in plain:
            if not 0 <= i < self.vocab_size:
                raise UsageError(
                    f"token id {quote(i)} is outside the vocabulary", f"ids run from 0 to {self.vocab_size - 1}"
                )
        return plain

    def _pieces(self, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text has a half character at {error.start}", "give it as UTF-8") from None
        return list(_guard("tokenizer.json cannot encode", self._core.encode, text, add_special_tokens=False).ids)

    def _id(self, key: str) -> int | None:
        text = self.special_tokens.get(key)
        return None if text is None else self._core.token_to_id(text)

    def _mask(self, configured: int | None) -> int:
        """The mask id, on which tokenizer and config.json must agree."""
        named = self.special_tokens.get("mask_token")
        present = {name: self._core.token_to_id(name) for name in ((named,) if named else MASK_NAMES)}
        name, own = next(((n, i) for n, i in present.items() if i is not None), (named, None))
        if named and own is None:
            raise CheckpointError(f"tokenizer_config.json: mask_token {quote(named)} is not in tokenizer.json")
        if own is not None and configured is not None and own != configured:
            raise CheckpointError(
                f"mask token {quote(name)} is {own} in the tokenizer, but config.json has mask_token_id={configured}",
                "tokenizer and weights are from different models",
            )
        mask = own if own is not None else configured
        if mask is None:
            raise CheckpointError(
                "the model has no mask token", "tokenizer_config.json needs a mask_token or config.json a mask_token_id"
            )
        return mask


def need_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer; UsageError with the way out where the model folder has none."""
    if tokenizer is None:
        raise UsageError("the model folder has no tokenizer.json", "give token ids: --prompt-ids 1,2,3")
    return tokenizer


def _load(path: Path) -> Any:
    """tokenizer.json, without the truncation and padding that it may ask for."""
    from tokenizers import Tokenizer as Core

    require_file(path)
    core = _guard(f"cannot read {path}", Core.from_str, read_text(path, 512 << 20))
    core.no_truncation()
    core.no_padding()
    return core


def _guard(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call into the tokenizers library; whatever it raises, panics included, is the file's fault."""
    try:
        return function(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{what}: {reason}", "download the file again") from None


def _special(settings: Mapping[str, Any], key: str) -> str | None:
    """The text of a special token: stored as text or as an object with `content`."""
    value = settings.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or (isinstance(value, str) and value):
        return value
    raise CheckpointError(f"tokenizer_config.json: {key} is {quote(value)}, not a token")


def _find_template(path: Path, settings: Mapping[str, Any]) -> Template | None:
    """The chat template: a file of its own comes before the entry in tokenizer_config.json."""
    if (path / "chat_template.jinja").exists():
        return Template(read_text(path / "chat_template.jinja"), "chat_template.jinja")
    source = "tokenizer_config.json"
    value = settings.get("chat_template")
    if (path / "chat_template.json").exists():
        source = "chat_template.json"
        value = read_object(path / source).get("chat_template")
    if isinstance(value, list):  # several named templates
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    if value is None:
        return None
    if isinstance(value, str):
        return Template(value, source)
    raise CheckpointError(f"{source}: chat_template is {quote(value)}, not a template")
