"""A LLaDA of any size with random weights: for tests, checks and benchmarks that need no download."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..backend import F32, Backend
from ..errors import CheckpointError
from ..models.llada import Llada
from ..tensors import Tensor, from_array

LOGIT_STD = 3.0  # about what trained models show; argmax margins are then far above float32 noise


class MemoryTensors:
    """Named float32 arrays as `dllm_core.models.base.Tensors`."""

    def __init__(self, arrays: dict[str, F32]) -> None:
        self.arrays = arrays

    def names(self) -> list[str]:
        return list(self.arrays)

    def tensor(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise CheckpointError(f"there is no tensor {name!r}")
        return from_array(self.arrays[name], name)


def random_config(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    mlp: int = 160,
    vocab: int = 131,
    max_length: int = 512,
) -> dict[str, Any]:
    """config.json of a small LLaDA; the mask is the last id, EOS the one before."""
    return {
        "model_type": "llada",
        "activation_type": "silu",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "include_bias": False,
        "weight_tying": False,
        "d_model": width,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "mlp_hidden_size": mlp,
        "vocab_size": vocab,
        "embedding_size": vocab,
        "mask_token_id": vocab - 1,
        "eos_token_id": vocab - 2,
        "pad_token_id": vocab - 2,
        "max_sequence_length": max_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }


def random_checkpoint(seed: int = 0, **sizes: int) -> tuple[dict[str, Any], MemoryTensors]:
    """(config, tensors) of a LLaDA whose weights depend on `seed` and the sizes of `random_config` alone."""
    config = random_config(**sizes)
    return config, MemoryTensors(dict(_arrays(config, seed)))


def random_model(backend: Backend, scheme: str = "f32", seed: int = 0, **sizes: int) -> Llada:
    """The model of `random_checkpoint`, prepared by `backend`."""
    config, tensors = random_checkpoint(seed, **sizes)
    return Llada(config, tensors, backend, scheme)


def save_random_checkpoint(folder: Path, seed: int = 0, **sizes: int) -> Path:
    """Write `random_checkpoint` as a model folder without tokenizer (config.json, model.safetensors, float32)."""
    from safetensors.numpy import save_file

    config, tensors = random_checkpoint(seed, **sizes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors.arrays, folder / "model.safetensors")
    return folder


def _arrays(config: dict[str, Any], seed: int) -> Iterator[tuple[str, F32]]:
    d, m, vocab = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
    kv = d // config["n_heads"] * config["n_kv_heads"]
    root = "model.transformer."

    def normal(name: str, *shape: int, std: float) -> tuple[str, F32]:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return name, rng.standard_normal(shape, np.float32) * np.float32(std)

    def gain(name: str) -> tuple[str, F32]:
        return name, 1 + normal(name, d, std=0.1)[1]

    yield normal(root + "wte.weight", vocab, d, std=1.0)
    for i in range(config["n_layers"]):
        block = f"{root}blocks.{i}."
        yield gain(block + "attn_norm.weight")
        yield gain(block + "ff_norm.weight")
        for name, *shape in [("q_proj", d, d), ("k_proj", kv, d), ("attn_out", d, d), ("ff_proj", m, d)]:
            yield normal(f"{block}{name}.weight", *shape, std=1.5 * shape[1] ** -0.5)
        for name, *shape in [("v_proj", kv, d), ("up_proj", m, d), ("ff_out", d, m)]:
            yield normal(f"{block}{name}.weight", *shape, std=1.5 * shape[1] ** -0.5)
    yield gain(root + "ln_f.weight")
    yield normal(root + "ff_out.weight", vocab, d, std=LOGIT_STD * d**-0.5)
