"""LLaDA (Nie et al. 2025, arXiv 2502.09992): a bidirectional Llama-like encoder that predicts masked tokens.

Reads like the paper: config, weight names, then the graph in order. Every key of the published config.json is
either implemented here or refused by name. Source of the rules: ML-GSAI/LLaDA, modeling_llada.py.
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
    "model_type": "llada",
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "rope_full_precision": True,
    "tie_word_embeddings": False,
    "weight_tying": False,
}
# What the authors' code assumes where one of these is absent is not implemented, so they must be there.
REQUIRED = {
    "activation_type": "swiglu",
    "block_type": "sequential",
    "layer_norm_type": "default",
    "rope": False,
    "weight_tying": True,
}
# Keys that do not touch inference: dropouts, initialisation, file bookkeeping, training precision.
IGNORED = {
    "_name_or_path",
    "alibi_bias_max",  # only with alibi
    "architectures",
    "attention_dropout",
    "attention_layer_norm_with_affine",  # only with attention_layer_norm
    "auto_map",
    "bos_token_id",
    "embedding_dropout",
    "flash_attention",
    "init_cutoff_factor",
    "init_device",
    "init_fn",
    "init_std",
    "precision",
    "residual_dropout",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
}


@dataclass(frozen=True)
class LladaConfig:
    """config.json with the checkpoint's own names."""

    d_model: int
    n_layers: int
    n_heads: int
    mlp_hidden_size: int
    vocab_size: int
    mask_token_id: int
    eos_token_id: int
    n_kv_heads: int
    embedding_size: int
    max_sequence_length: int
    rms_norm_eps: float
    rope_theta: float
    scale_logits: bool
    pad_token_id: int

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> LladaConfig:
        """Read and check config.json; UnsupportedError names the first key that cannot be honoured."""
        _check_fixed(config)
        number = Numbers(config)
        heads = number.whole("n_heads")
        width = number.whole("d_model")
        vocab = number.whole("vocab_size")
        parsed = cls(
            d_model=width,
            n_layers=number.whole("n_layers"),
            n_heads=heads,
            mlp_hidden_size=_mlp_width(number, width),
            vocab_size=vocab,
            mask_token_id=number.identifier("mask_token_id"),
            eos_token_id=number.identifier("eos_token_id"),
            n_kv_heads=_kv_heads(number, heads),
            embedding_size=number.whole("embedding_size", vocab),
            max_sequence_length=number.whole("max_sequence_length", 1024),
            rms_norm_eps=number.real("rms_norm_eps", 1e-5),
            rope_theta=number.real("rope_theta", 10000.0),
            scale_logits=number.flag("scale_logits"),
            pad_token_id=number.identifier("pad_token_id", number.identifier("eos_token_id")),
        )
        known = {*cls.__dataclass_fields__, *FIXED, *IGNORED, "mlp_ratio", "multi_query_attention"}
        refuse_unknown(config, known, "llada")
        parsed.check()
        return parsed

    def check(self) -> None:
        """The relations between sizes that the graph relies on."""
        check_heads(self.d_model, self.n_heads, self.n_kv_heads, ("d_model", "n_heads", "n_kv_heads"))
        check_length("max_sequence_length", self.max_sequence_length)
        if self.embedding_size < self.vocab_size:
            raise UnsupportedError(
                f"config.json: embedding_size={self.embedding_size} is below vocab_size={self.vocab_size}"
            )
        ids = {key: getattr(self, key) for key in ("mask_token_id", "eos_token_id", "pad_token_id")}
        check_ids(ids, self.embedding_size)


class Llada:
    """The prepared model. `hidden` is the graph up to the head, which the decoder applies to the rows it needs."""

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Tensors,
        backend: Backend,
        scheme: str,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        c = self.config = LladaConfig.parse(config)
        self.backend, self.scheme = backend, scheme
        self.facts = Facts(
            family="llada",
            layers=c.n_layers,
            width=c.d_model,
            kv_heads=c.n_kv_heads,
            head_dim=c.head_dim,
            vocab_size=c.embedding_size,
            mask_id=c.mask_token_id,
            eos_id=c.eos_token_id,
            max_length=c.max_sequence_length,
        )
        root = "model.transformer."
        self.embedding: Tensor = fetch(tensors, root + "wte.weight", (c.embedding_size, c.d_model))
        self.norm = fetch(tensors, root + "ln_f.weight", (c.d_model,)).array()
        if c.scale_logits:  # logits / sqrt(d_model), folded into the last norm
            self.norm *= np.float32(1 / np.sqrt(c.d_model))
        self.layers: list[LayerWeights] = []
        tables = rope_tables(c.head_dim, c.rope_theta, c.max_sequence_length)
        for i in range(c.n_layers):
            self.layers.append(_layer(c, tensors, i, backend, scheme, tables))
            progress(i + 1, c.n_layers + 1)
        # The head and a block's down projection share the leaf name ff_out.
        head = (root + "ff_out.weight", (c.embedding_size, c.d_model))
        self.head = projection(tensors, backend, scheme, "head", [head])
        progress(c.n_layers + 1, c.n_layers + 1)

    def hidden(self, ids: I64, kv: list[Any], rows: Rows, keep: I64 | None = None) -> F32:
        ops = self.backend
        x = ops.embed(self.embedding, ids)  # [R, d]
        x = ops.layers(x, self.layers, kv, rows, keep)
        return ops.rms_norm(x, self.norm, self.config.rms_norm_eps)

    def predictor(self, positions: I64) -> I64:
        return positions  # no shift: logits at i predict token i


def _layer(
    c: LladaConfig, tensors: Tensors, i: int, backend: Backend, scheme: str, tables: tuple[F32, F32]
) -> LayerWeights:
    d, m, kv = c.d_model, c.mlp_hidden_size, c.n_kv_heads * c.head_dim
    root = f"model.transformer.blocks.{i}."

    def norm(name: str) -> F32:
        return fetch(tensors, f"{root}{name}.weight", (d,)).array()

    def project(name: str, inputs: int, **rows: int) -> Handle:
        parts = [(f"{root}{leaf}.weight", (n, inputs)) for leaf, n in rows.items()]
        return projection(tensors, backend, scheme, f"layers.{i}.{name}", parts)

    return LayerWeights(
        attn_norm=norm("attn_norm"),
        qkv=project("qkv", d, q_proj=d, k_proj=kv, v_proj=kv),
        attn_out=project("attn_out", d, attn_out=d),
        mlp_norm=norm("ff_norm"),
        gate_up=project("gate_up", d, ff_proj=m, up_proj=m),
        down=project("down", m, ff_out=d),
        heads=c.n_heads,
        kv_heads=c.n_kv_heads,
        head_dim=c.head_dim,
        eps=c.rms_norm_eps,
        cos=tables[0],
        sin=tables[1],
    )


def _check_fixed(config: Mapping[str, Any]) -> None:
    """UnsupportedError for the first key that asks for another graph than this one."""
    for key, value in FIXED.items():
        if key not in config:
            if key in REQUIRED:
                raise UnsupportedError(
                    f"config.json lacks {key}",
                    f"LLaDA's default for it is {REQUIRED[key]!r}, only {value!r} is supported",
                )
            continue
        given = config[key]
        if given is None and key == "bias_for_layer_norm":  # null: as include_bias
            continue
        if type(given) is not type(value) or given != value:
            raise UnsupportedError(f"config.json: {key}={quote(given)} is not supported", f"only {value!r} is")


def _mlp_width(number: Numbers, width: int) -> int:
    """mlp_hidden_size, or mlp_ratio times the width of the model where it is not given."""
    if number.config.get("mlp_hidden_size") is not None:
        return number.whole("mlp_hidden_size")
    return number.whole("mlp_hidden_size", width * number.whole("mlp_ratio", 4))


def _kv_heads(number: Numbers, heads: int) -> int:
    """n_kv_heads, or what multi_query_attention says; both may be given if they agree."""
    if number.config.get("multi_query_attention") is None:
        return number.whole("n_kv_heads", heads)
    implied = 1 if number.flag("multi_query_attention") else heads
    if number.whole("n_kv_heads", implied) != implied:
        raise UnsupportedError(
            f"config.json: n_kv_heads={number.config['n_kv_heads']} contradicts "
            f"multi_query_attention={number.config['multi_query_attention']}"
        )
    return implied
