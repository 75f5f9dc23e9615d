"""Model folders that are well: values exact, nothing read before it is used."""

import json
import resource
import struct
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from dllm_core.checkpoint import open_folder

CONFIG = {"model_type": "llada", "d_model": 4}


def write_shard(path, tensors, metadata=None, pad=0):
    """A safetensors file by hand: {name: (dtype, shape, bytes)}; `pad` spaces follow the header."""
    header, at = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_single_file_f32_and_f16(folder):
    a = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    b = np.array([1.5, -2.25, 6.1e-5], np.float16)
    save_file({"a": a, "b.weight": b}, folder / "model.safetensors", metadata={"format": "pt"})
    opened = open_folder(folder)
    assert opened.config == CONFIG
    assert sorted(opened.names()) == ["a", "b.weight"]
    assert opened.total_bytes == 48 + 6
    assert opened.generation_config == {}
    assert opened.tensor("a").dtype == "F32"
    assert opened.tensor("a").shape == (3, 4)
    np.testing.assert_array_equal(opened.tensor("a").array(), a)
    np.testing.assert_array_equal(opened.tensor("a").rows(1, 3), a[1:])
    got = opened.tensor("b.weight")
    assert (got.dtype, got.array().dtype) == ("F16", np.float32)
    np.testing.assert_array_equal(got.array(), b.astype(np.float32))


def test_bf16_is_widened_exactly(folder):
    codes = {0x3F80: 1.0, 0xC000: -2.0, 0x4049: 3.140625, 0x0000: 0.0, 0x0001: 2.0**-133, 0x7F7F: 255 * 2.0**120}
    data = struct.pack("<6H", *codes)
    write_shard(folder / "model.safetensors", {"w": ("BF16", [2, 3], data)})
    got = open_folder(folder).tensor("w")
    assert (got.dtype, got.shape) == ("BF16", (2, 3))
    assert got.array().ravel().tolist() == list(codes.values())
    np.testing.assert_array_equal(got.gather(np.array([1, 0, 1])), got.array()[[1, 0, 1]])


def test_shards_of_mixed_kinds(folder):
    write_shard(folder / "model-00001-of-00002.safetensors", {"a": ("F32", [2], struct.pack("<2f", 1, 2))})
    tensors = {"b": ("BF16", [1], b"\x80\x3f"), "c": ("F16", [], b"\x00\x3c")}
    write_shard(folder / "model-00002-of-00002.safetensors", tensors, {"format": "pt"})
    names = {"a": "model-00001-of-00002.safetensors"} | dict.fromkeys("bc", "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 12}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    opened = open_folder(str(folder))
    assert opened.names() == ["a", "b", "c"]
    assert opened.total_bytes == 12
    assert opened.tensor("a").array().tolist() == [1, 2]
    assert opened.tensor("b").array().tolist() == [1]
    assert opened.tensor("c").array().tolist() == 1  # a scalar


@pytest.mark.parametrize("pad", range(9))
def test_data_may_begin_at_any_byte(folder, pad):
    write_shard(folder / "model.safetensors", {"a": ("F32", [2], struct.pack("<2f", 0.5, -3))}, pad=pad)
    assert open_folder(folder).tensor("a").array().tolist() == [0.5, -3]


def test_empty_tensors_and_files_without_tensors(folder):
    write_shard(folder / "model.safetensors", {"a": ("F32", [0, 4], b""), "b": ("F32", [1], b"\0\0\x80\x3f")})
    opened = open_folder(folder)
    assert opened.tensor("a").array().shape == (0, 4)
    assert opened.tensor("b").array().tolist() == [1]
    write_shard(folder / "model.safetensors", {})
    assert open_folder(folder).names() == []


def test_other_types_may_lie_beside_the_weights(folder):
    tensors = {"ids": ("I64", [2], bytes(16)), "w": ("F32", [1], struct.pack("<f", 9))}
    write_shard(folder / "model.safetensors", tensors)
    opened = open_folder(folder)
    assert opened.names() == ["ids", "w"]
    assert opened.tensor("w").array().tolist() == [9]


def test_links_are_followed(folder, tmp_path_factory):
    blobs = tmp_path_factory.mktemp("blobs")
    write_shard(blobs / "0123abc", {"a": ("F32", [1], struct.pack("<f", 4))})
    (folder / "model.safetensors").symlink_to(blobs / "0123abc")
    assert open_folder(folder).tensor("a").array().tolist() == [4]


def test_generation_config(folder):
    write_shard(folder / "model.safetensors", {})
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert open_folder(folder).generation_config == {"eos_token_id": 7}


def test_the_single_file_comes_before_an_index(folder):
    write_shard(folder / "model.safetensors", {"a": ("F32", [1], struct.pack("<f", 4))})
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"z": "missing.safetensors"}}')
    assert open_folder(folder).names() == ["a"]


def peak_bytes():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_opening_reads_nothing_big(folder):
    size = 8 << 30  # a hole in the file: it takes no space on the disk
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4096, 1024], "data_offsets": [0, size]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    open_folder(folder)  # modules are loaded, the allocator is warm
    before = peak_bytes()
    opened = open_folder(folder)
    tensor = opened.tensor("w")
    assert (opened.total_bytes, tensor.shape) == (size, (2 << 20, 1024))
    assert tensor.rows(1 << 20, (1 << 20) + 64).sum() == 0
    assert tensor.gather(np.array([0, (2 << 20) - 1])).shape == (2, 1024)
    assert peak_bytes() - before < 32 << 20
