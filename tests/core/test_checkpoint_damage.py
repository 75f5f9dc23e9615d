"""Model folders that are not well: each fault is named in one line, nothing but our own errors comes out."""

import json
import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dllm_core.checkpoint import open_folder
from dllm_core.errors import CheckpointError, DllmError, NotFoundError, UnsupportedError

FLOATS = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
GOOD = {
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
}


def raw(header, data=FLOATS, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llada"}')
    (tmp_path / "model.safetensors").write_bytes(raw(GOOD))
    return tmp_path


def check(folder, kind, *words, act=open_folder):
    """The exact class, one line, every word in message or hint."""
    with pytest.raises(DllmError) as caught:
        act(folder)
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    text = f"{error.message} -- {error.hint}"
    assert "\n" not in text
    assert len(text) < 700
    for word in words:
        assert str(word) in text, f"{word!r} not in {text!r}"


def test_the_good_one(folder):
    assert open_folder(folder).tensor("b").array().tolist() == [5, 6]


def entry(**changes):
    return {"a": GOOD["a"], "b": GOOD["b"] | changes}


HEADERS = [
    # header, error, words
    (entry(dtype="F33"), UnsupportedError, ["'b'", "F33", "F32, F16, BF16"]),
    (entry(dtype="F4"), UnsupportedError, ["'b'", "F4"]),
    (entry(dtype=7), CheckpointError, ["'b'", "dtype 7"]),
    (entry(dtype="F16"), CheckpointError, ["'b'", "[16, 24]", "F16 [2]", "4 bytes"]),
    (entry(shape=[3]), CheckpointError, ["'b'", "[3]", "12 bytes"]),
    (entry(shape=[-2]), CheckpointError, ["'b'", "[-2]"]),
    (entry(shape=[2.0]), CheckpointError, ["'b'", "[2.0]"]),
    (entry(shape=[True, 2]), CheckpointError, ["'b'", "[True, 2]"]),
    (entry(shape="2"), CheckpointError, ["'b'", "shape '2'"]),
    (entry(shape=[1] * 64), CheckpointError, ["'b'", "shape"]),
    (entry(shape=[2**62, 4]), CheckpointError, ["'b'", "too large"]),
    (entry(shape=[2**62, 0], data_offsets=[16, 16]), CheckpointError, ["'b'", "too large"]),
    (entry(shape=[10**3000]), CheckpointError, ["'b'", "shape"]),
    (entry(data_offsets=[16, 25]), CheckpointError, ["'b'", "[16, 25]", "8 bytes"]),
    (entry(data_offsets=[-8, 0]), CheckpointError, ["'b'", "[-8, 0]"]),
    (entry(data_offsets=[24, 16]), CheckpointError, ["'b'", "[24, 16]"]),
    (entry(data_offsets=[16]), CheckpointError, ["'b'", "[16]"]),
    (entry(data_offsets=None), CheckpointError, ["'b'", "None"]),
    (entry(data_offsets=[8, 16]), CheckpointError, ["'b'", "overlaps tensor 'a'"]),
    (entry(data_offsets=[0, 8]), CheckpointError, ["overlaps"]),
    (entry(data_offsets=[17, 25]), CheckpointError, ["'b'", "truncated"]),
    (entry(data_offsets=[2**40, 2**40 + 8]), CheckpointError, ["'b'", "truncated"]),
    ({"b": GOOD["b"]}, CheckpointError, ["'b'", "gap", "header"]),
    ({"a": GOOD["a"]}, CheckpointError, ["8 bytes after tensor 'a'"]),
    ({}, CheckpointError, ["24 bytes after the header"]),
    ({"a": 3}, CheckpointError, ["'a'", "3"]),
    ({"a": {}}, CheckpointError, ["'a'", "dtype None"]),
    (GOOD | {"__metadata__": {"k": 1}}, CheckpointError, ["__metadata__"]),
    (GOOD | {"__metadata__": []}, CheckpointError, ["__metadata__"]),
    (b"[]", CheckpointError, ["header", "[]", "not a JSON object"]),
    (b"{", CheckpointError, ["header", "not valid JSON", "line 1"]),
    (b"\xff\xfe{}", CheckpointError, ["header", "not UTF-8", "byte at 0"]),
    (b'{"a": NaN}', CheckpointError, ["header", "NaN"]),
    (b'{"a": ' + b"9" * 5000 + b"}", CheckpointError, ["header", "not valid JSON"]),
    (b'{"a": ' + b"[" * 100_000, CheckpointError, ["header", "not valid JSON", "nested"]),
    (json.dumps(GOOD).replace('"b"', '"a"').encode(), CheckpointError, ["'a' appears twice"]),
    ({"evil\n\x1b[31m" + "x" * 10_000: 3}, CheckpointError, [r"'evil\n\x1b[31mxxx", "..."]),
]


@pytest.mark.parametrize(("header", "kind", "words"), HEADERS, ids=range(len(HEADERS)))
def test_bad_headers(folder, header, kind, words):
    (folder / "model.safetensors").write_bytes(raw(header))
    check(folder, kind, "model.safetensors", *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"1234567", ["only 7 bytes"]),
        (raw(GOOD)[:-1], ["'b'", "truncated at"]),
        (raw(GOOD)[:60], ["truncated at 60 bytes"]),
        (raw(GOOD) + b"\0", ["1 bytes after tensor 'b'"]),
        (raw(GOOD, length=10**6), ["1000000 bytes", "truncated"]),
        (raw(GOOD, length=20), ["header", "not valid JSON"]),
        (raw(GOOD, length=0), ["header", "not valid JSON"]),
        (raw(GOOD, length=2**63), [str(2**63), "more than the 100000000 allowed"]),
        (b"\x80\x04PK pickled, not safetensors", ["no safetensors file"]),
    ],
    ids=range(10),
)
def test_bad_files(folder, content, words):
    (folder / "model.safetensors").write_bytes(content)
    check(folder, CheckpointError, "model.safetensors", *words, "download")


def test_a_stored_type_that_no_model_is_built_from(folder):
    (folder / "model.safetensors").write_bytes(raw(entry(dtype="F64", shape=[1])))
    check(folder, UnsupportedError, "'b'", "F64", "F32, F16, BF16", act=lambda f: open_folder(f).tensor("b"))


def test_a_tensor_that_is_not_there(folder):
    many = {f"layer.{i}.weight": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(24)}
    (folder / "model.safetensors").write_bytes(raw(many))
    check(
        folder, CheckpointError, "'layer.24.weight'", "nearest", act=lambda f: open_folder(f).tensor("layer.24.weight")
    )


def test_a_file_that_shrinks_after_it_was_opened(folder):
    opened = open_folder(folder)
    os.truncate(folder / "model.safetensors", 100)
    check(folder, CheckpointError, "model.safetensors", "shrank to 100 bytes", act=lambda _: opened.tensor("b"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not valid JSON"]),
        (b"{'a': 1}", ["not valid JSON", "line 1 column 2"]),
        (b"[1, 2]", ["[1, 2]", "not a JSON object"]),
        (b'"llada"', ["'llada'", "not a JSON object"]),
        (b'{"a": NaN}', ["NaN"]),
        (b'{"a": -Infinity}', ["Infinity"]),
        (b'{"a": 1, "a": 2}', ["'a' appears twice"]),
        (b'{"a": "\xff"}', ["not UTF-8"]),
        (b'{"a":' * 100_000, ["nested"]),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_bad_json(folder, name, content, words):
    (folder / name).write_bytes(content)
    check(folder, CheckpointError, name, *words, act=lambda f: open_folder(f).generation_config)


def test_a_config_of_absurd_size(folder):
    os.truncate(folder / "config.json", 65 << 20)
    check(folder, CheckpointError, "config.json", "68157440 bytes")


# ---- the folder -------------------------------------------------------------------------------------------


def test_no_folder(tmp_path):
    check(tmp_path / "nothing", NotFoundError, "nothing does not exist", "config.json")


def test_a_file_instead_of_a_folder(folder):
    check(folder / "model.safetensors", UnsupportedError, "is a file", f"give its folder: {folder}")
    (folder / "model.gguf").write_bytes(b"GGUF")
    check(folder / "model.gguf", UnsupportedError, "model.gguf is a file", "a folder with config.json")


def test_no_config(folder):
    (folder / "config.json").unlink()
    check(folder, NotFoundError, "config.json does not exist")


def test_a_folder_called_config_json(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    check(folder, CheckpointError, "config.json is no regular file")


def test_a_pipe_instead_of_weights_does_not_hang(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    check(folder, CheckpointError, "model.safetensors is no regular file")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    check(folder, NotFoundError, "has no model.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth", "last.ckpt"])
def test_pickled_weights_only(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    check(folder, UnsupportedError, name, "pickled", "convert the model to safetensors")


def test_a_link_to_nothing(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/0123")
    check(folder, NotFoundError, "model.safetensors", "link to nothing", "download")


# ---- shards -----------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(folder):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    other = {"c": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}
    (folder / "two.safetensors").write_bytes(raw(other))
    write_index(folder, a="one.safetensors", b="one.safetensors", c="two.safetensors")
    return folder


def write_index(folder, **names):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def test_shards_that_are_well(sharded):
    assert open_folder(sharded).names() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "name",
    ["../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors", "..\\one.safetensors", "C:one.safetensors",
     "./one.safetensors", "one\0.safetensors", "", 3, None, ["one.safetensors"]],
)  # fmt: skip
def test_an_index_that_leads_elsewhere(sharded, name):
    kind = UnsupportedError if name == "" else CheckpointError
    write_index(sharded, a="one.safetensors", b="one.safetensors", c=name)
    check(sharded, kind, "model.safetensors.index.json", "'c'", repr(name))


def test_an_index_of_pickled_shards(sharded):
    write_index(sharded, a="pytorch_model-00001-of-00001.bin")
    check(sharded, UnsupportedError, "pytorch_model-00001-of-00001.bin", "convert")


def test_a_shard_that_is_missing(sharded):
    (sharded / "two.safetensors").unlink()
    check(sharded, NotFoundError, "two.safetensors does not exist", "download")


def test_a_shard_that_is_truncated(sharded):
    os.truncate(sharded / "two.safetensors", 70)
    check(sharded, CheckpointError, "two.safetensors", "truncated")


def test_an_index_entry_that_its_shard_does_not_hold(sharded):
    write_index(sharded, a="one.safetensors", d="two.safetensors")
    check(sharded, CheckpointError, "index.json", "'d'", "two.safetensors", "different checkpoints")


def test_a_name_in_two_shards(sharded):
    (sharded / "two.safetensors").write_bytes(raw(GOOD))
    write_index(sharded, a="one.safetensors", b="two.safetensors")
    check(sharded, CheckpointError, "tensor 'a'", "one.safetensors", "two.safetensors")


def test_shards_without_an_index(sharded):
    (sharded / "model.safetensors.index.json").unlink()
    check(sharded, NotFoundError, "'one.safetensors'", "model.safetensors.index.json")


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", "nonsense", ""])
def test_an_index_that_maps_nothing(sharded, content):
    (sharded / "model.safetensors.index.json").write_text(content)
    check(sharded, CheckpointError, "model.safetensors.index.json")


# ---- at random: nothing but a DllmError, ever --------------------------------------------------------------

fuzzed = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def survive(folder, content):
    """Readable in full (True) or refused with an error of our own, in one line."""
    (folder / "model.safetensors").write_bytes(content)
    refusal = None
    try:
        opened = open_folder(folder)
        for name in opened.names():
            opened.tensor(name).array()
    except DllmError as error:
        refusal = error.message
    assert refusal is None or (refusal and "\n" not in refusal)
    return refusal is None


@fuzzed
@given(cut=st.integers(0, len(raw(GOOD)) - 1))
def test_every_truncation_is_refused(folder, cut):
    assert not survive(folder, raw(GOOD)[:cut])


@fuzzed
@given(at=st.integers(0, len(raw(GOOD)) - len(FLOATS) - 1), value=st.integers(0, 255), more=st.binary(max_size=4))
def test_random_bytes_in_the_header(folder, at, value, more):
    content = bytearray(raw(GOOD))
    content[at : at + 1 + len(more)] = bytes([value]) + more
    survive(folder, bytes(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "U8", "F4"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**64) | st.integers(0, 3), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(0, 24) | st.integers(), min_size=2, max_size=2) | json_values,
    }
)


@fuzzed
@given(header=st.dictionaries(st.text(max_size=4), entries | json_values, max_size=3), data=st.binary(max_size=24))
def test_random_headers(folder, header, data):
    survive(folder, raw(header, data))


@fuzzed
@given(content=st.binary(max_size=64))
def test_random_files(folder, content):
    survive(folder, content)


@fuzzed
@given(weight_map=st.dictionaries(st.sampled_from("abc"), st.sampled_from(["one.safetensors", "x"]) | json_values))
def test_random_indices(folder, weight_map):
    (folder / "one.safetensors").write_bytes(raw(GOOD))
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    try:
        names = open_folder(folder).names()
    except DllmError:
        return
    assert names == ["a", "b"]
