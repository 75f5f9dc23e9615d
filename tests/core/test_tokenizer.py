"""Text to ids and back, special ids, and the faults that a tokenizer's files can have."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from dllm_core.errors import CheckpointError, DllmError, UsageError
from dllm_core.tokenizer import Tokenizer, need_tokenizer

SPECIAL = ["<|startoftext|>", "<|endoftext|>", "<|eot_id|>", "<|mdm_mask|>"]
WORDS = ["Hello", "\u0120world", "ab", "."]  # \u0120 is the byte-level alphabet's space
ROWS = 270


def core(special=SPECIAL, words=WORDS):
    """Special tokens from id 0, then 256 bytes, then whole words."""
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(w for w in words if len(w) > 1)]
    made = Core(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return made


SETTINGS = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "mask_token": SPECIAL[3]}


def write(folder, tokenizer=None, settings=SETTINGS, config=None):
    (tokenizer or core()).save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"mask_token_id": 3} if config is None else config))
    return folder


def load(folder, rows=ROWS):
    return need_tokenizer(Tokenizer.from_folder(folder, rows))


def check(folder, *words, kind=CheckpointError, act=load):
    with pytest.raises(DllmError) as caught:
        act(folder)
    assert type(caught.value) is kind
    text = f"{caught.value.message} -- {caught.value.hint}"
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} not in {text!r}"


def test_encode_and_decode(tmp_path):
    t = load(write(tmp_path))
    ids = t.encode("Hello world.")
    assert [t.token_text(i) for i in ids] == ["Hello", " world", "."]
    assert t.decode(ids) == "Hello world."
    assert t.decode(np.array(ids)) == "Hello world."
    assert t.encode("") == []
    assert t.decode([]) == ""


@given(text=st.text())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives(tmp_path, text):
    if not (tmp_path / "tokenizer.json").exists():
        write(tmp_path)
    t = load(tmp_path)
    assert t.decode(t.encode(text), skip_special=False) == text


def test_special_ids(tmp_path):
    t = load(write(tmp_path))
    assert (t.bos_id, t.eos_id, t.eot_id, t.mask_id, t.vocab_size) == (0, 1, 2, 3, ROWS)


def test_special_tokens_may_be_objects(tmp_path):
    tokens = {key: {"__type": "AddedToken", "content": text} for key, text in SETTINGS.items()}
    t = load(write(tmp_path, settings=tokens))
    assert (t.bos_id, t.eos_id, t.mask_id) == (0, 1, 3)


def test_without_tokenizer_config(tmp_path):
    t = load(write(tmp_path, settings=None))
    assert (t.bos_id, t.eos_id, t.eot_id, t.mask_id) == (None, None, 2, 3)
    assert t.decode(t.encode("Hello")) == "Hello"


def test_special_tokens_in_text_and_in_decoding(tmp_path):
    t = load(write(tmp_path))
    ids = t.encode("<|eot_id|>Hello<|mdm_mask|>")
    assert ids[0] == 2
    assert ids[-1] == 3
    assert t.decode(ids) == "Hello"
    assert t.decode(ids, skip_special=False) == "<|eot_id|>Hello<|mdm_mask|>"
    assert t.token_text(3) == "<|mdm_mask|>"


def test_bos_is_added_only_if_asked_for(tmp_path):
    assert load(write(tmp_path)).encode("Hello")[0] != 0
    assert load(write(tmp_path, settings=SETTINGS | {"add_bos_token": False})).encode("Hello")[0] != 0
    t = load(write(tmp_path, settings=SETTINGS | {"add_bos_token": True}))
    assert t.encode("Hello") == [0, *t.encode("Hello")[1:]]
    assert t.decode(t.encode("Hello"), skip_special=False) == "<|startoftext|>Hello"


def test_a_post_processor_adds_nothing(tmp_path):
    from tokenizers.processors import TemplateProcessing

    made = core()
    made.post_processor = TemplateProcessing(single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", 0)])
    assert load(write(tmp_path, made)).encode("Hello") == load(write(tmp_path)).encode("Hello")


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path):
    made = core()
    made.enable_truncation(2)
    t = load(write(tmp_path, made))
    assert t.decode(t.encode("a b c d e f"), skip_special=False) == "a b c d e f"
    made.no_truncation()
    made.enable_padding(length=64, pad_id=1, pad_token="<|endoftext|>")
    t = load(write(tmp_path, made))
    assert t.decode(t.encode("a b c d e f"), skip_special=False) == "a b c d e f"


def test_display_of_single_tokens(tmp_path):
    t = load(write(tmp_path))
    assert t.token_text(t.encode(" ")[0]) == " "
    assert t.token_text(ROWS - 1) == f"<id {ROWS - 1}>"  # a row of the embedding without a token
    assert t.decode([ROWS - 1]) == ""


def test_display_of_sentencepiece_tokens(tmp_path):
    vocab = {"<|mdm_mask|>": 0, "\u2581a": 1, "a": 2}
    made = Core(models.WordLevel(vocab, unk_token="a"))
    made.decoder = decoders.Metaspace()
    t = load(write(tmp_path, made, settings={}, config={}))
    assert [t.token_text(1), t.token_text(2)] == [" a", "a"]


@pytest.mark.parametrize("bad", [-1, ROWS, 2**40, 10**3000])
def test_ids_outside_the_vocabulary(tmp_path, bad):
    t = load(write(tmp_path))
    words = ["token id", "outside the vocabulary", f"0 to {ROWS - 1}"]
    check(tmp_path, *words, kind=UsageError, act=lambda _: t.decode([5, bad]))
    check(tmp_path, *words, kind=UsageError, act=lambda _: t.token_text(bad))
    check(tmp_path, *words, kind=UsageError, act=lambda _: t.check_ids([bad]))
    assert t.check_ids(np.array([0, ROWS - 1])) == [0, ROWS - 1]


def test_half_characters(tmp_path):
    t = load(write(tmp_path))
    check(tmp_path, "half character at 1", kind=UsageError, act=lambda _: t.encode("a\udcff"))


# ---- the mask token -----------------------------------------------------------------------------------------


def test_the_mask_may_be_known_by_name_or_by_config(tmp_path):
    nameless = {k: v for k, v in SETTINGS.items() if k != "mask_token"}
    assert load(write(tmp_path, settings=nameless, config={})).mask_id == 3
    dream = core(["<|im_end|>", "<|endoftext|>", "<|mask|>"])
    t = load(write(tmp_path, dream, settings={}, config={}))
    assert (t.mask_id, t.eot_id) == (2, 0)
    other = core(["<|endoftext|>", "[HOLE]"])
    assert load(write(tmp_path, other, settings={}, config={"mask_token_id": 1})).mask_id == 1
    assert load(write(tmp_path, other, settings={"mask_token": "[HOLE]"}, config={})).mask_id == 1
    (tmp_path / "config.json").unlink()
    assert load(tmp_path).mask_id == 1


def test_no_mask_at_all(tmp_path):
    write(tmp_path, core(["<|endoftext|>"]), settings={}, config={"mask_token_id": None})
    check(tmp_path, "no mask token", "mask_token_id")


def test_mask_ids_that_disagree(tmp_path):
    write(tmp_path, config={"mask_token_id": 7})
    check(tmp_path, "'<|mdm_mask|>' is 3", "mask_token_id=7", "different models")
    write(tmp_path, settings={}, config={"mask_token_id": 7})
    check(tmp_path, "'<|mdm_mask|>' is 3", "mask_token_id=7")


def test_a_mask_token_that_the_tokenizer_does_not_know(tmp_path):
    write(tmp_path, settings=SETTINGS | {"mask_token": "[MASK]"})
    check(tmp_path, "mask_token '[MASK]'", "not in tokenizer.json")


@pytest.mark.parametrize("value", [-1, ROWS, "3", 3.0, True, [3]])
def test_a_mask_id_that_is_none(tmp_path, value):
    write(tmp_path, settings={}, config={"mask_token_id": value})
    check(tmp_path, f"mask_token_id={value!r}", str(ROWS))


# ---- files --------------------------------------------------------------------------------------------------


def test_no_tokenizer(tmp_path):
    assert Tokenizer.from_folder(tmp_path, ROWS) is None
    check(tmp_path, "no tokenizer.json", "--prompt-ids", kind=UsageError)


def test_a_tokenizer_of_another_model(tmp_path):
    check(write(tmp_path), "token id 262", "only 262 embeddings", act=lambda f: load(f, 262))
    assert load(write(tmp_path), 263).vocab_size == 263


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["cannot read", "EOF"]),
        (b"{}", ["cannot read"]),
        (b"[]", ["cannot read"]),
        (b'{"version": "1.0"', ["cannot read"]),
        (b"\xff", ["not UTF-8"]),
    ],
    ids=range(5),
)
def test_broken_tokenizer_json(tmp_path, content, words):
    write(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(content)
    check(tmp_path, "tokenizer.json", *words, "download")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bos_token": 3}, ["bos_token is 3"]),
        ({"eos_token": ""}, ["eos_token is ''"]),
        ({"mask_token": {"text": "x"}, "pad_token": []}, ["pad_token is []"]),
        ({"add_bos_token": True}, ["add_bos_token", "no bos_token"]),
        ({"chat_template": 3}, ["chat_template is 3"]),
    ],
    ids=range(5),
)
def test_broken_tokenizer_config(tmp_path, settings, words):
    check(write(tmp_path, settings=settings), "tokenizer_config.json", *words)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json", "chat_template.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"], ids=range(4))
def test_broken_json(tmp_path, name, content):
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    check(tmp_path, name)


def test_a_folder_called_tokenizer_json(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").mkdir()
    check(tmp_path, "tokenizer.json is no regular file")


document = core().to_str().encode()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(document) - 1), new=st.binary(max_size=3))
def test_random_bytes_in_tokenizer_json(tmp_path, at, new):
    write(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(document[:at] + new + document[at + len(new) :])
    try:
        t = load(tmp_path)
        t.decode(t.encode("Hello w\u00f6rld. <|eot_id|>"))
    except DllmError:
        return
    assert t.mask_id == 3
