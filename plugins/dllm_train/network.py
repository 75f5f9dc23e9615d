"""LLaDA's architecture in torch, for training only. Parameter names are the published checkpoints' own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The size of the model; the defaults are the model inside."""

    vocab_size: int
    d_model: int = 192
    n_layers: int = 6
    n_heads: int = 6
    mlp_hidden_size: int = 512
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_sequence_length: int = 256

    def config(self, mask_id: int, eos_id: int) -> dict[str, object]:
        """config.json with LLaDA's keys."""
        return {
            "architectures": ["LLaDAModelLM"],
            "model_type": "llada",
            "activation_type": "silu",
            "alibi": False,
            "attention_layer_norm": False,
            "bias_for_layer_norm": False,
            "block_group_size": 1,
            "block_type": "llama",
            "d_model": self.d_model,
            "embedding_size": self.vocab_size,
            "eos_token_id": eos_id,
            "include_bias": False,
            "include_qkv_bias": False,
            "input_emb_norm": False,
            "layer_norm_type": "rms",
            "layer_norm_with_affine": True,
            "mask_token_id": mask_id,
            "max_sequence_length": self.max_sequence_length,
            "mlp_hidden_size": self.mlp_hidden_size,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_heads,
            "n_layers": self.n_layers,
            "pad_token_id": eos_id,
            "rms_norm_eps": self.rms_norm_eps,
            "rope": True,
            "rope_full_precision": True,
            "rope_theta": self.rope_theta,
            "scale_logits": False,
            "use_cache": False,
            "vocab_size": self.vocab_size,
            "weight_tying": False,
        }


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        d, m = s.d_model, s.mlp_hidden_size
        self.heads = s.n_heads
        self.attn_norm = RMSNorm(d, s.rms_norm_eps)
        self.ff_norm = RMSNorm(d, s.rms_norm_eps)
        for name, rows, columns in (
            ("q_proj", d, d),
            ("k_proj", d, d),
            ("v_proj", d, d),
            ("attn_out", d, d),
            ("ff_proj", m, d),
            ("up_proj", m, d),
            ("ff_out", d, m),
        ):
            setattr(self, name, nn.Linear(columns, rows, bias=False))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        n = self.attn_norm(x)  # [B, T, d]
        q, k, v = (
            p(n).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Written out: for rows this short the fused kernel's backward pass costs more than all the GEMMs.
        scores = _rotate(q, cos, sin) @ _rotate(k, cos, sin).transpose(-1, -2) * q.shape[-1] ** -0.5
        a = scores.softmax(-1) @ v  # [B, H, T, hd]
        x = x + self.attn_out(a.transpose(1, 2).flatten(2))
        n = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(n)) * self.up_proj(n))


class Transformer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.wte = nn.Embedding(s.vocab_size, s.d_model)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.n_layers))
        self.ln_f = RMSNorm(s.d_model, s.rms_norm_eps)
        self.ff_out = nn.Linear(s.d_model, s.vocab_size, bias=False)


class Network(nn.Module):
    """[B, T] token ids -> logits [B, T, vocab_size]."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"transformer": Transformer(s)})
        head = s.d_model // s.n_heads
        frequencies = s.rope_theta ** (-torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(s.max_sequence_length).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("attn_out.weight", "blocks.ff_out.weight"))
                nn.init.normal_(p, std=0.02 if not deep else 0.02 / (2 * s.n_layers) ** 0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        t = self.model["transformer"]
        x = t.wte(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in t.blocks:
            x = block(x, cos, sin)
        return t.ff_out(t.ln_f(x))
