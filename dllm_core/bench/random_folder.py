"""Models with random weights of a real model's shape, made tensor by tensor as they are packed. For measuring only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checkpoint.files import read_object
from ..errors import NotFoundError, UsageError, quote
from ..tensors import BF16, Tensor

PREFIX = "random:"
Block = npt.NDArray[np.uint16]
LAYERS = {"llada": "n_layers", "Dream": "num_hidden_layers"}
SHIFT = 64  # values by which a row of a matrix lies behind the one before

LLADA = {
    "model_type": "llada", "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True,
    "include_bias": False, "weight_tying": False, "vocab_size": 126464, "embedding_size": 126464,
    "mask_token_id": 126336, "eos_token_id": 126081, "pad_token_id": 126081, "max_sequence_length": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llada-8b": {**LLADA, "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288},
    "llada-1b": {**LLADA, "d_model": 2048, "n_layers": 22, "n_heads": 32, "n_kv_heads": 4, "mlp_hidden_size": 5634},
    "dream-7b": {
        "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "mask_token_id": 151666,
        "eos_token_id": 151643, "pad_token_id": 151643, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": False,
    },
}  # fmt: skip


class RandomFolder:
    """Stands in for `dllm_core.checkpoint.Folder`: `config` of the model, and tensors of any name and shape."""

    generation_config: dict[str, Any] = {}  # noqa: RUF012  never written

    def __init__(self, reference: str) -> None:
        """reference: "random:" and a name of `SHAPES`, or the path of a config.json or of its folder."""
        self._blocks: dict[int, Block] = {}  # by number of inputs
        name = reference.removeprefix(PREFIX)
        if name in SHAPES:
            self.config = dict(SHAPES[name])
            return
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise NotFoundError(
                f"{quote(reference)}: no shape is called {quote(name)}, and no config.json is there",
                f"shapes: {', '.join(SHAPES)}; or {PREFIX}PATH/config.json",
            )
        self.config = read_object(path)

    def names(self) -> list[str]:
        return []

    def tensor(self, name: str) -> Tensor:
        raise NotFoundError(f"a random model has no tensor {name!r} of its own")

    def make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """bfloat16 values, of the size that trained weights have; vectors (norms, biases) are ones.

        Rows of a matrix are windows on one random block: all different, and no memory of their own.
        """
        if len(shape) == 1:
            return Tensor(name, np.full(shape, 0x3F80, np.uint16), BF16)
        n, k = shape
        if (n - 1) * SHIFT + k > len(self._blocks.get(k, ())):
            self._blocks[k] = _block((n - 1) * SHIFT + k, k)
        return Tensor(name, _windows(self._blocks[k], n, k), BF16)


def random_matrix(n: int, k: int) -> Tensor:
    """One matrix as a random model has them."""
    return Tensor("weight", _windows(_block((n - 1) * SHIFT + k, k), n, k), BF16)


def _block(size: int, k: int) -> Block:
    """Uniform bfloat16 values, scaled so that `k` inputs make outputs of their own size."""
    values = np.random.default_rng(k).random(size, np.float32) - np.float32(0.5)
    values *= np.float32((12 / k) ** 0.5)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _windows(block: Block, n: int, k: int) -> Block:
    return np.lib.stride_tricks.as_strided(block, (n, k), (SHIFT * 2, 2), writeable=False)


def cut_layers(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The config with only its first `layers` layers."""
    if layers is None:
        return config
    key = LAYERS.get(str(config.get("model_type")))
    if key is None:
        raise UsageError(f"--layers: it is not known where family {quote(config.get('model_type'))} keeps its depth")
    if not 1 <= layers <= config.get(key, 0):
        raise UsageError(f"--layers is {layers}", f"the model has {config.get(key)}")
    return {**config, key: layers}
