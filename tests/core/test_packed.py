"""Packed models: the same numbers as the folder they came from, used where they are mapped, written all or nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections import namedtuple
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend
from safetensors import safe_open
from safetensors.numpy import save_file

from dllm_core import api
from dllm_core.checkpoint import PACKED, open_folder
from dllm_core.checkpoint import convert as module
from dllm_core.checkpoint.convert import convert
from dllm_core.errors import CheckpointError, DllmError, DoesNotFitError, UnsupportedError, UsageError
from dllm_core.models import build_model
from dllm_core.packing import Layout
from dllm_core.testing.check import all_logits, isa_variants
from dllm_core.testing.random_model import save_random_checkpoint

BACKENDS = ("numpy", "cffi-simd", "numba-int8")
SCHEMES = ("f32", "bf16", "qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w")
# The others do not compute with the bytes of the file but with a wider copy.
WIDENED = {("numpy", "bf16"), ("numpy", "qd8-f32-qb4w"), ("numba-int8", "bf16")}
IN_PLACE = [pair for pair in product(BACKENDS, SCHEMES) if pair not in WIDENED]
IDS = np.arange(17)


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    """No size is a multiple of a panel, a step or a group."""
    return save_random_checkpoint(tmp_path_factory.mktemp("llada"), width=150, heads=5, kv_heads=1, mlp=203, vocab=131)


@pytest.fixture(scope="module")
def dream(tmp_path_factory):
    """Projections with biases, bfloat16 everywhere."""
    d, m, vocab, kv = 36, 50, 90, 12
    folder = tmp_path_factory.mktemp("dream")
    config = {
        "model_type": "Dream", "hidden_size": d, "num_hidden_layers": 1, "num_attention_heads": 3,
        "num_key_value_heads": 1, "intermediate_size": m, "vocab_size": vocab, "max_position_embeddings": 64,
        "mask_token_id": 89, "eos_token_id": 88, "pad_token_id": 88, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False,
    }  # fmt: skip
    block = "model.layers.0."
    shapes = {"model.embed_tokens": (vocab, d), "model.norm": (d,), "lm_head": (vocab, d)}
    shapes |= {block + "input_layernorm": (d,), block + "post_attention_layernorm": (d,)}
    shapes |= {
        f"{block}self_attn.{n}_proj": s for n, s in (("q", (d, d)), ("k", (kv, d)), ("v", (kv, d)), ("o", (d, d)))
    }
    shapes |= {block + "mlp.gate_proj": (m, d), block + "mlp.up_proj": (m, d), block + "mlp.down_proj": (d, m)}
    named = {f"{name}.weight": shape for name, shape in shapes.items()}
    named |= {f"{block}self_attn.{n}_proj.bias": (s,) for n, s in (("q", d), ("k", kv), ("v", kv))}
    rng = np.random.default_rng(0)
    header, data = {}, b""
    for name, shape in named.items():
        values = (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def build(path, backend, scheme, warn=None):
    folder = open_folder(path)
    if warn is not None:
        folder.warn = warn
    return folder, build_model(folder.config, folder, backend, scheme)


def logits(path, backend, scheme, warn=None):
    return all_logits(build(path, backend, scheme, warn)[1], IDS)


def handle_arrays(handle):
    """The large arrays of a handle, whichever backend made it."""
    if hasattr(handle, "panels"):
        return [handle.panels, handle.scales]
    if hasattr(handle, "arrays"):
        return [array for array in handle.arrays if array.size]
    w = handle.weight
    return [w.codes, w.scales] if hasattr(w, "codes") else [w]


@pytest.mark.parametrize(("name", "scheme"), IN_PLACE)
def test_equals_the_folder_and_lies_in_the_file(name, scheme, llada, dream, registry, tmp_path):
    backend = registry.backend(name, 2)
    for source in (llada, dream):
        target = tmp_path / source.name
        done = convert(source, target, backend, scheme)
        assert done.bytes == (target / PACKED).stat().st_size
        folder, model = build(target, backend, scheme, pytest.fail)
        np.testing.assert_array_equal(all_logits(model, IDS), logits(source, backend, scheme))
        mapped = np.memmap(target / PACKED, np.uint8, mode="r")
        shard = folder.shards[0]
        for handle in (model.head, model.layers[0].qkv, model.layers[0].down):
            for array in handle_arrays(handle):
                assert np.shares_memory(array, shard._bytes)
                assert not array.flags.writeable
        assert len(mapped) == shard._bytes.size


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_other_layout_is_rearranged_with_one_warning(scheme, llada, dream, registry, tmp_path):
    """Across backends and instruction sets: the result equals what that backend packs itself, bit for bit."""
    variants = [NumpyBackend(1), *isa_variants(registry.backend("cffi-simd", 1))]
    variants += isa_variants(registry.backend("numba-int8", 1))
    for i, writer in enumerate(variants):
        for source in (llada, dream):
            target = tmp_path / f"{source.name}{i}"
            convert(source, target, writer, scheme)
            for reader in variants:
                heard: list[str] = []
                got = logits(target, reader, scheme, heard.append)
                np.testing.assert_array_equal(got, logits(source, reader, scheme))
                assert len(heard) == (reader.layout(scheme) != writer.layout(scheme))
                assert all(str(writer.layout(scheme)) in line and str(reader.layout(scheme)) in line for line in heard)


def test_a_packed_model_is_a_source(llada, registry, tmp_path):
    native = registry.backend("cffi-simd", 1)
    convert(llada, tmp_path / "rows", NumpyBackend(1), "qd8-f32-qb8w")
    with pytest.warns(UserWarning, match="rearranged"):
        convert(tmp_path / "rows", tmp_path / "panels", native, "qd8-f32-qb8w")
    convert(llada, tmp_path / "direct", native, "qd8-f32-qb8w")
    again, direct = (open_folder(tmp_path / name).tensor for name in ("panels", "direct"))
    name = "layers.0.qkv.scales"
    np.testing.assert_array_equal(again(name).array(), direct(name).array())
    with pytest.raises(UsageError, match=r"qd8-f32-qb8w.*f32"):
        convert(tmp_path / "rows", tmp_path / "other", native, "f32")


def test_the_file(dream, tmp_path):
    """Readable by safetensors; arrays at multiples of 64; what is no projection as it was stored; metadata."""
    convert(dream, tmp_path / "out", NumpyBackend(1), "qd8-f32-qc8w")
    folder, source = open_folder(tmp_path / "out"), open_folder(dream)
    assert all(folder.entry(n).start % 64 == 0 for n in folder.names() if not n.startswith("padding."))
    with safe_open(tmp_path / "out" / PACKED, "numpy") as file:
        assert file.get_tensor("layers.0.qkv.codes").shape == (60, 36)
        assert file.get_tensor("layers.0.qkv.bias").shape == (60,)
        facts = file.metadata()
    assert (facts["format"], facts["version"], facts["family"]) == ("dllm-packed", "1", "Dream")
    assert facts["layout"] == "numpy/1/any/qd8-f32-qc8w/1x1+0"
    assert json.loads(facts["config"]) == source.config
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        assert folder.entry(name).dtype == "BF16"
        np.testing.assert_array_equal(folder.tensor(name).raw, source.tensor(name).raw)
    bias = np.concatenate([source.tensor(f"model.layers.0.self_attn.{n}_proj.bias").array() for n in "qkv"])
    np.testing.assert_array_equal(folder.tensor("layers.0.qkv.bias").array(), bias)


def test_the_source_hash_follows_the_contents(llada, tmp_path):
    def hashed(name):
        convert(llada if name == "a" else tmp_path / "copy", tmp_path / name, NumpyBackend(1), "f32")
        return open_folder(tmp_path / name).metadata["source_hash"]

    shutil.copytree(llada, tmp_path / "copy")
    first = hashed("a")
    assert hashed("b") == first
    data = bytearray((tmp_path / "copy" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "copy" / "model.safetensors").write_bytes(data)
    assert hashed("c") != first


def test_other_files_come_along(llada, tmp_path):
    shutil.copytree(llada, tmp_path / "src")
    (tmp_path / "src" / "generation_config.json").write_text('{"max_tokens": 4}')
    (tmp_path / "src" / "notes.txt").write_text("stays")
    convert(tmp_path / "src", tmp_path / "out", NumpyBackend(1), "f32")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "generation_config.json", PACKED]
    engine = api.load(str(tmp_path / "out" / PACKED), backend="numpy")  # its file stands for the folder
    assert engine.options().max_tokens == 4


def test_memory_of_one_projection(tmp_path):
    """8 layers of 4 projections: the largest is a gate_up of 4.2 million codes, its chunk 4 MB in float32."""
    source = save_random_checkpoint(tmp_path / "src", layers=8, width=1024, heads=8, kv_heads=8, mlp=2048, vocab=64)
    tracemalloc.start()
    convert(source, tmp_path / "out", NumpyBackend(1), "qd8-f32-qc8w")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 << 20 < peak < 40 << 20 < (tmp_path / "out" / PACKED).stat().st_size


# ---- all or nothing ----


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


class Failing(NumpyBackend):
    """Packs three projections, then does as told."""

    def __init__(self, act):
        super().__init__(1)
        self.act, self.count = act, 0

    def pack(self, handle):
        self.count += 1
        if self.count == 4:
            self.act()
        return super().pack(handle)


@pytest.mark.parametrize("fault", [RuntimeError("broken"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_of_a_failure(fault, llada, tmp_path):
    def act():
        assert leftovers(tmp_path) == [".out.partial"]
        raise fault

    with pytest.raises(type(fault)):
        convert(llada, tmp_path / "out", Failing(act), "f32")
    assert leftovers(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from dllm_numpy.backend import NumpyBackend
from dllm_core.checkpoint.convert import convert
class Killed(NumpyBackend):
    count = 0
    def pack(self, handle):
        self.count += 1
        if self.count == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pack(handle)
convert(Path(sys.argv[1]), Path(sys.argv[2]), Killed(1), "f32")
"""


def test_a_killed_process_leaves_no_model_and_is_no_obstacle(llada, tmp_path):
    target = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, str(llada), str(target)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert leftovers(tmp_path) == [".out.partial"]
    (tmp_path / ".out.partial" / "config.json").write_text("stale")
    convert(llada, target, NumpyBackend(1), "f32")
    assert leftovers(tmp_path) == ["out"]
    np.testing.assert_array_equal(logits(target, NumpyBackend(1), "f32"), logits(llada, NumpyBackend(1), "f32"))


def test_one_conversion_at_a_time(llada, tmp_path):
    def second():
        with pytest.raises(UsageError, match="another conversion"):
            convert(llada, tmp_path / "out", NumpyBackend(1), "f32")

    convert(llada, tmp_path / "out", Failing(second), "f32")
    assert leftovers(tmp_path) == ["out"]


def test_an_existing_target_is_replaced_with_force_only(llada, dream, tmp_path):
    target, backend = tmp_path / "out", NumpyBackend(1)
    convert(dream, target, backend, "f32")
    with pytest.raises(UsageError, match="exists already"):
        convert(llada, target, backend, "f32")
    assert open_folder(target).config["model_type"] == "Dream"
    convert(llada, target, backend, "f32", force=True)
    assert open_folder(target).config["model_type"] == "llada"
    assert leftovers(tmp_path) == ["out"]
    with pytest.raises(UsageError, match="no packed model"):
        convert(llada, llada, backend, "f32", force=True)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UsageError, match="no packed model"):
        convert(llada, tmp_path / "file", backend, "f32", force=True)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_disk_that_is_too_small(llada, tmp_path, monkeypatch):
    need = convert(llada, tmp_path / "fits", NumpyBackend(1), "f32").bytes
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10**9, 10**9 - need, need))
    with pytest.raises(DoesNotFitError, match=f"{need:,} free"):  # config.json is on top of the weights
        convert(llada, tmp_path / "out", NumpyBackend(1), "f32")
    assert leftovers(tmp_path) == ["fits"]
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10**9, 0, need + 10**5))
    convert(llada, tmp_path / "out", NumpyBackend(1), "f32")


def test_a_source_that_does_not_fit_its_config_is_refused_before_anything_is_written(llada, tmp_path):
    shutil.copytree(llada, tmp_path / "src")
    config = json.loads((llada / "config.json").read_text())
    (tmp_path / "src" / "config.json").write_text(json.dumps({**config, "mlp_hidden_size": 204}))
    with pytest.raises(CheckpointError, match="ff_proj"):
        convert(tmp_path / "src", tmp_path / "out", NumpyBackend(1), "f32")
    assert leftovers(tmp_path) == ["src"]


# ---- damaged or foreign files ----


def rewrite(folder, change):
    """Let `change` edit the header (a dict) of a packed file."""
    path = folder / PACKED
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def metadata(**values):
    return lambda header: header["__metadata__"].update(values)


def shape(name, *sizes):
    return lambda header: header[name].update(shape=list(sizes))


def rename(old, new):
    return lambda header: header.update({new: header.pop(old)})


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (metadata(format="other"), CheckpointError, ["no packed model", "'other'"]),
        (lambda header: header.pop("__metadata__"), CheckpointError, ["no packed model", "None"]),
        (metadata(version="2"), UnsupportedError, ["version '2'", "reads 1"]),
        (metadata(scheme="int3"), UnsupportedError, ["'int3'"]),
        (metadata(layout="spiral"), UnsupportedError, ["unknown layout 'spiral'"]),
        (metadata(layout="numpy/1/any/f32/0x1+0"), UnsupportedError, ["unknown layout"]),
        (metadata(layout="numpy/1/any/f32/1x1+128"), UnsupportedError, ["unknown layout"]),
        (metadata(layout="numpy/1/any/qd8-f32-qc8w/1x1+8"), UnsupportedError, ["unknown layout"]),
        (metadata(layout="numpy/2/any/qd8-f32-qc8w/1x1+0"), UnsupportedError, ["numpy/2/any", "numpy/1/any"]),
        (metadata(layout="numpy/1/any/f32/1x1+0"), CheckpointError, ["qd8-f32-qc8w", "f32"]),
        (metadata(layout="numpy/1/any/qd8-f32-qc8w/8x4+0"), CheckpointError, ["layers.0.qkv.codes", "[27, 38, 8, 4]"]),
        (metadata(config="{}"), CheckpointError, ["config.json", "packed with"]),
        (metadata(config="{"), CheckpointError, ["not valid JSON"]),
        (rename("layers.1.down.scales", "layers.1.down.scale"), CheckpointError, ["layers.1.down.scales"]),
        (shape("layers.0.qkv.codes", 150, 210), CheckpointError, ["layers.0.qkv.codes", "[150, 210]", "[210, 150]"]),
        (rename("model.transformer.ln_f.weight", "x"), CheckpointError, ["model.transformer.ln_f.weight"]),
    ],
    ids=range(16),
)
def test_damage_is_named(change, kind, words, llada, tmp_path):
    convert(llada, tmp_path / "out", NumpyBackend(1), "qd8-f32-qc8w")
    rewrite(tmp_path / "out", change)
    with pytest.raises(kind) as caught:
        api.load(str(tmp_path / "out"), backend="numpy")
    for word in words:
        assert word in caught.value.message


def test_a_truncated_file(llada, tmp_path):
    convert(llada, tmp_path / "out", NumpyBackend(1), "f32")
    size = (tmp_path / "out" / PACKED).stat().st_size
    for cut in (size - 1, size // 2, 100, 4, 0):
        os.truncate(tmp_path / "out" / PACKED, cut)
        with pytest.raises(CheckpointError):
            api.load(str(tmp_path / "out"), backend="numpy")


def test_an_unaligned_file_is_still_right(llada, registry, tmp_path):
    """Somebody rewrote it with the safetensors library, which aligns to 8."""
    backend = registry.backend("cffi-simd", 1)
    convert(llada, tmp_path / "out", backend, "qd8-f32-qb8w")
    with safe_open(tmp_path / "out" / PACKED, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("padding.")}  # noqa: SIM118
        facts = file.metadata()
    arrays["aaa"] = np.zeros(3, np.float32)
    save_file(arrays, tmp_path / "out" / PACKED, facts)
    np.testing.assert_array_equal(
        logits(tmp_path / "out", backend, "qd8-f32-qb8w"), logits(llada, backend, "qd8-f32-qb8w")
    )


def test_another_scheme_is_an_error_that_names_both(llada, tmp_path):
    convert(llada, tmp_path / "out", NumpyBackend(1), "qd8-f32-qc8w")
    assert api.load(str(tmp_path / "out"), backend="numpy").model.scheme == "qd8-f32-qc8w"
    with pytest.raises(UsageError, match=r"qd8-f32-qc8w.*f32"):
        api.load(str(tmp_path / "out"), backend="numpy", scheme="f32")


def test_a_backend_with_handles_of_its_own_is_refused_by_name(llada, tmp_path):
    class Stranger(NumpyBackend):
        name = "stranger"

        def prepare_linear(self, weights, scheme, biases=None):
            return ("mine", super().prepare_linear(weights, scheme, biases))

    with pytest.raises(UnsupportedError, match="stranger"):
        convert(llada, tmp_path / "out", Stranger(1), "f32")
    convert(llada, tmp_path / "out", NumpyBackend(1), "f32")
    with pytest.raises(UnsupportedError, match="stranger"):
        build(tmp_path / "out", Stranger(1), "f32")


def test_a_failing_backend_is_told_apart_from_a_layout_that_lies(llada, tmp_path):
    class Liar(NumpyBackend):
        def layout(self, scheme):
            return Layout("liar", 1, "any", scheme, 8, 1)

    with pytest.raises(DllmError, match="its layout says"):
        convert(llada, tmp_path / "out", Liar(1), "f32")


def test_the_embedding_is_not_mapped_in_huge_pages(llada, tmp_path):
    """A pass reads a few rows of it, and each would count as two megabytes of memory."""
    convert(llada, tmp_path / "out", NumpyBackend(1), "f32")
    raw = open_folder(tmp_path / "out").tensor("model.transformer.wte.weight").raw
    flags, inside = set(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and ":" not in first:
            start, stop = (int(part, 16) for part in first.split("-"))
            inside = start <= raw.ctypes.data < stop
        elif inside and line.startswith("VmFlags:"):
            flags = set(line.split()[1:])
    assert "nh" in flags
