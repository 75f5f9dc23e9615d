"""`describe`: figures counted by hand on a model of 1 layer, and the reasons why others are not supported."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from dllm_core.checkpoint.describe import describe
from dllm_core.errors import CheckpointError, NotFoundError
from dllm_core.plugins import Registry

D, HEADS, KV, MLP, VOCAB, ROWS, CONTEXT = 8, 2, 1, 130, 10, 12, 16
CONFIG = {
    "model_type": "llada", "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True,
    "weight_tying": False, "d_model": D, "n_heads": HEADS, "n_kv_heads": KV, "n_layers": 1, "mlp_hidden_size": MLP,
    "vocab_size": VOCAB, "embedding_size": ROWS, "max_sequence_length": CONTEXT, "mask_token_id": 11,
    "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
BLOCK = "model.transformer.blocks.0."
SHAPES = {
    "model.transformer.wte.weight": (ROWS, D),
    "model.transformer.ln_f.weight": (D,),
    "model.transformer.ff_out.weight": (ROWS, D),
    BLOCK + "attn_norm.weight": (D,),
    BLOCK + "ff_norm.weight": (D,),
    BLOCK + "q_proj.weight": (D, D),
    BLOCK + "k_proj.weight": (4, D),
    BLOCK + "v_proj.weight": (4, D),
    BLOCK + "attn_out.weight": (D, D),
    BLOCK + "ff_proj.weight": (MLP, D),
    BLOCK + "up_proj.weight": (MLP, D),
    BLOCK + "ff_out.weight": (D, MLP),
}
PROJECTIONS = ROWS * D + D * D + 2 * 4 * D + D * D + 3 * MLP * D
OTHERS = ROWS * D + 3 * D


def write(folder, config=CONFIG, shapes=SHAPES, dtype=np.float32):
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.zeros(shape, dtype) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


def test_a_supported_model(tmp_path):
    found = describe(write(tmp_path))
    json.dumps(found)
    assert found["path"] == str(tmp_path)
    assert (found["model_type"], found["supported"], found["reason"]) == ("llada", True, None)
    assert (found["files"], found["tensors"]) == (1, 12)
    assert found["parameters"] == PROJECTIONS + OTHERS
    assert found["bytes"] == 4 * (PROJECTIONS + OTHERS)
    assert found["dtypes"] == {"F32": {"tensors": 12, "bytes": 4 * (PROJECTIONS + OTHERS)}}
    assert found["sizes"] == {"layers": 1, "width": D, "kv_heads": KV, "head_dim": 4, "vocab_size": ROWS}
    assert found["context"] == CONTEXT
    assert found["special_ids"] == {"mask": 11, "eos": 1, "pad": 2, "bos": None, "eot": None}
    assert (found["tokenizer"], found["chat_template"], found["tokenizer_problem"]) == (False, False, None)


def test_memory_per_scheme(tmp_path):
    outputs = ROWS + D + 2 * 4 + D + 2 * MLP + D  # output channels of all projections: one scale each
    keys_and_values = 2 * 4 * KV * 4 * CONTEXT
    rest = 2 * OTHERS + keys_and_values  # as stored
    memory = describe(write(tmp_path, dtype=np.float16))["memory"]
    assert memory["f32"] == 4 * PROJECTIONS + rest
    assert memory["qd8-f32-qc8w"] == PROJECTIONS + 4 * outputs + rest
    # only the down projection has more than 128 inputs, so two scales per output
    assert memory["qd8-f32-qb8w"] == PROJECTIONS + 4 * (outputs + D) + rest


def test_kinds_of_numbers_are_counted(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    arrays = {"a": np.zeros(3, np.float16), "b": np.zeros(2, np.float32), "c": np.zeros(5, np.float32)}
    save_file(arrays, tmp_path / "model.safetensors")
    found = describe(tmp_path)
    assert found["dtypes"] == {"F16": {"tensors": 1, "bytes": 6}, "F32": {"tensors": 2, "bytes": 28}}
    assert (found["parameters"], found["bytes"], found["model_type"]) == (10, 34, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, ["model_type='bert'", "known families: Dream, llada"]),
        ({"alibi": True}, ["alibi=True", "not supported"]),
        ({"d_model": "8"}, ["d_model='8'"]),
        ({"n_layers": 2}, ["model.transformer.blocks.1."]),
        ({"mlp_hidden_size": 128}, ["ff_proj.weight", "[130, 8]", "[128, 8]"]),
    ],
    ids=range(5),
)
def test_why_a_model_is_not_supported(tmp_path, changes, words):
    found = describe(write(tmp_path, CONFIG | changes))
    assert found["supported"] is False
    for word in words:
        assert word in f"{found['reason']} -- {found['hint']}"
    assert (found["memory"], found["context"], found["tensors"]) == ({}, None, 12)
    assert found["special_ids"]["mask"] == 11


def test_stored_types_that_are_not_supported(tmp_path):
    found = describe(write(tmp_path, dtype=np.int32))
    assert found["supported"] is False
    assert "I32" in found["reason"]


def test_families_of_plugins(tmp_path):
    registry = Registry()

    def broken(config, tensors, backend, scheme):
        raise KeyError("hidden_size")

    registry.families["mine"] = broken
    found = describe(write(tmp_path, {"model_type": "mine"}), registry)
    assert found["supported"] is False
    assert found["reason"] == "the plugin for mine failed: KeyError: 'hidden_size'"


def test_a_tokenizer_that_does_not_fit(tmp_path):
    (write(tmp_path) / "tokenizer.json").write_text("{}")
    found = describe(tmp_path)
    assert (found["supported"], found["tokenizer"]) == (True, True)
    assert "tokenizer.json" in found["tokenizer_problem"]


def test_damaged_folders_are_not_described(tmp_path):
    with pytest.raises(NotFoundError):
        describe(tmp_path / "nothing")
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="empty"):
        describe(tmp_path)
