"""Where the bytes of a running model are."""

from __future__ import annotations

from typing import Any

PROJECTIONS = ("qkv", "attn_out", "gate_up", "down")


def footprint(model: Any, positions: int) -> dict[str, int]:
    """Bytes of packed weights, of the embedding table (mapped: only rows that are used become memory), of keys and
    values of `positions`, and of the backend's scratch. A family that keeps its layers elsewhere has no weights here.
    """
    backend, facts = model.backend, model.facts
    handles = [getattr(layer, name) for layer in getattr(model, "layers", ()) for name in PROJECTIONS]
    embedding = getattr(model, "embedding", None)
    return {
        "weights": sum(backend.linear_bytes(handle) for handle in [*handles, model.head]),
        "embedding": embedding.raw.nbytes if embedding is not None else 0,
        "keys and values": 2 * 4 * facts.layers * positions * facts.kv_heads * facts.head_dim,
        "scratch": backend.scratch_bytes,
    }
