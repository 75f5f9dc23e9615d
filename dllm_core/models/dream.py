"""Dream (Ye et al. 2025): a Qwen2-shaped bidirectional encoder whose logits at position i predict token i + 1.

Config, weight names, graph in order. Differences from LLaDA: biases on q, k and v, tensor names, and the shift.
Source of the rules: DreamLM/Dream, modeling_dream.py and configuration_dream.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import F32, I64, Backend, Handle, LayerWeights, Rows
from ..errors import UnsupportedError, quote
from ..tensors import Tensor
from .base import Facts, Tensors, fetch, projection, refuse_unknown, rope_tables
from .config import Numbers, check_heads, check_ids, check_length

# Keys whose other values would change the graph, with the one value that is implemented.
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "use_mrope": False,
}
IGNORED = {
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "full_attn_mask",
    "initializer_range",
    "max_window_layers",  # of the sliding window, which is off
    "model_type",
    "sliding_window",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


@dataclass(frozen=True)
class DreamConfig:
    """config.json with the checkpoint's own names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    mask_token_id: int
    eos_token_id: int
    pad_token_id: int
    rms_norm_eps: float
    rope_theta: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> DreamConfig:
        """Read and check config.json; UnsupportedError names the first key that cannot be honoured."""
        for key, value in FIXED.items():
            if config.get(key, value) != value:
                raise UnsupportedError(
                    f"config.json: {key}={quote(config[key])} is not supported", f"only {value!r} is"
                )
        number = Numbers(config)
        heads = number.whole("num_attention_heads")
        eos = number.identifier("eos_token_id", 151643)
        parsed = cls(
            hidden_size=number.whole("hidden_size"),
            num_hidden_layers=number.whole("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=number.whole("num_key_value_heads", heads),
            intermediate_size=number.whole("intermediate_size"),
            vocab_size=number.whole("vocab_size"),
            max_position_embeddings=number.whole("max_position_embeddings", 32768),
            mask_token_id=number.identifier("mask_token_id", 151666),
            eos_token_id=eos,
            pad_token_id=number.identifier("pad_token_id", eos),
            rms_norm_eps=number.real("rms_norm_eps", 1e-6),
            rope_theta=number.real("rope_theta", 10000.0),
        )
        refuse_unknown(config, {*cls.__dataclass_fields__, *FIXED, *IGNORED}, "Dream")
        names = ("hidden_size", "num_attention_heads", "num_key_value_heads")
        check_heads(parsed.hidden_size, heads, parsed.num_key_value_heads, names)
        check_length("max_position_embeddings", parsed.max_position_embeddings)
        ids = {key: getattr(parsed, key) for key in ("mask_token_id", "eos_token_id", "pad_token_id")}
        check_ids(ids, parsed.vocab_size)
        return parsed


class Dream:
    """The prepared model. `hidden` is the graph up to the head, which the decoder applies to the rows it needs."""

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Tensors,
        backend: Backend,
        scheme: str,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        c = self.config = DreamConfig.parse(config)
        self.backend, self.scheme = backend, scheme
        self.facts = Facts(
            family="dream",
            layers=c.num_hidden_layers,
            width=c.hidden_size,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            vocab_size=c.vocab_size,
            mask_id=c.mask_token_id,
            eos_id=c.eos_token_id,
            max_length=c.max_position_embeddings,
            decoding={"schedule": "timesteps", "remasking": "entropy"},
        )
        self.embedding: Tensor = fetch(tensors, "model.embed_tokens.weight", (c.vocab_size, c.hidden_size))
        self.norm = fetch(tensors, "model.norm.weight", (c.hidden_size,)).array()
        tables = rope_tables(c.head_dim, c.rope_theta, c.max_position_embeddings)
        self.layers: list[LayerWeights] = []
        for i in range(c.num_hidden_layers):
            self.layers.append(_layer(c, tensors, i, backend, scheme, tables))
            progress(i + 1, c.num_hidden_layers + 1)
        head = ("lm_head.weight", (c.vocab_size, c.hidden_size))
        self.head = projection(tensors, backend, scheme, "head", [head])
        progress(c.num_hidden_layers + 1, c.num_hidden_layers + 1)

    def hidden(self, ids: I64, kv: list[Any], rows: Rows, keep: I64 | None = None) -> F32:
        ops = self.backend
        x = ops.embed(self.embedding, ids)  # [R, d]
        x = ops.layers(x, self.layers, kv, rows, keep)
        return ops.rms_norm(x, self.norm, self.config.rms_norm_eps)

    def predictor(self, positions: I64) -> I64:
        return np.maximum(positions - 1, 0)  # logits at i predict token i + 1; the first row stands in for token 0


def _layer(
    c: DreamConfig, tensors: Tensors, i: int, backend: Backend, scheme: str, tables: tuple[F32, F32]
) -> LayerWeights:
    d, m, kv = c.hidden_size, c.intermediate_size, c.num_key_value_heads * c.head_dim
    root = f"model.layers.{i}."

    def norm(name: str) -> F32:
        return fetch(tensors, f"{root}{name}.weight", (d,)).array()

    def project(name: str, module: str, inputs: int, bias: bool = False, **rows: int) -> Handle:
        leaves = [(f"{root}{module}.{leaf}", n) for leaf, n in rows.items()]
        weights = [(f"{leaf}.weight", (n, inputs)) for leaf, n in leaves]
        biases = [(f"{leaf}.bias", (n,)) for leaf, n in leaves] if bias else []
        return projection(tensors, backend, scheme, f"layers.{i}.{name}", weights, biases)

    return LayerWeights(
        attn_norm=norm("input_layernorm"),
        qkv=project("qkv", "self_attn", d, bias=True, q_proj=d, k_proj=kv, v_proj=kv),
        attn_out=project("attn_out", "self_attn", d, o_proj=d),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=project("gate_up", "mlp", d, gate_proj=m, up_proj=m),
        down=project("down", "mlp", m, down_proj=d),
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        eps=c.rms_norm_eps,
        cos=tables[0],
        sin=tables[1],
    )
