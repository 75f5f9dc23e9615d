"""What every model family gives the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..backend import F32, I64, Backend, Handle, Rows
from ..errors import CheckpointError, UnsupportedError, quote
from ..tensors import Tensor

Shaped = tuple[str, tuple[int, ...]]  # name of a tensor and the shape that config.json asks for


class Tensors(Protocol):
    """Named arrays, read lazily.

    Two kinds of source have more. Packed models and the converter have `projection`, with the arguments of the
    function below, and random models have `make(name, shape) -> Tensor`: no tensor of theirs exists before.
    """

    def names(self) -> list[str]: ...

    def tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class Facts:
    """What decoding needs to know of a model."""

    family: str  # `model_type` of config.json
    layers: int
    width: int  # d, of the hidden states
    kv_heads: int  # G
    head_dim: int  # D
    vocab_size: int  # columns of the logits
    mask_id: int  # the token that stands for "not written yet"
    eos_id: int  # end of text
    max_length: int  # tokens of prompt and canvas together
    eot_id: int | None = None  # end of turn
    decoding: Mapping[str, Any] = field(default_factory=dict)  # fields of DecodeOptions that the family asks for


class Model(Protocol):
    """A prepared model: weights packed by one backend, graph in order."""

    facts: Facts
    backend: Backend
    scheme: str
    head: Handle  # the projection to the vocabulary, for `Backend.score`

    def hidden(self, ids: I64, kv: list[Any], rows: Rows, keep: I64 | None = None) -> F32:
        """Run the rows `ids` [R]; return the final-normed hidden states [R or len(keep), d]."""

    def predictor(self, positions: I64) -> I64:
        """The position whose hidden state predicts the token at each of `positions`."""


def rope_tables(head_dim: int, theta: float, positions: int) -> tuple[F32, F32]:
    """cos and sin, float32 [positions, head_dim / 2] of angle position * theta^(-2j / head_dim).

    Frequencies and angles are rounded to float32 as the authors' code does, the functions are exact.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequency = (1.0 / np.power(np.float64(theta), exponent)).astype(np.float32)
    angle = np.outer(np.arange(positions, dtype=np.float32), frequency).astype(np.float64)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def fetch(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor `name`; CheckpointError unless it exists with this shape."""
    make = getattr(tensors, "make", None)
    tensor = tensors.tensor(name) if make is None else make(name, shape)
    if tensor.shape != shape:
        raise CheckpointError(f"tensor {name} has shape {list(tensor.shape)}, config.json asks for {list(shape)}")
    return tensor


def projection(
    tensors: Tensors, backend: Backend, scheme: str, name: str, weights: Sequence[Shaped], biases: Sequence[Shaped] = ()
) -> Handle:
    """One linear layer of the graph, called `name` in packed models: several weights [N_i, K] fused, biases [N_i].

    Comes from a packed model as it lies there; otherwise the tensors are fetched and packed by the backend.
    """
    ready = getattr(tensors, "projection", None)
    if ready is not None:
        return ready(backend, scheme, name, weights, biases)
    bias = [fetch(tensors, *part) for part in biases] or None
    return backend.prepare_linear([fetch(tensors, *part) for part in weights], scheme, bias)


def refuse_unknown(config: Mapping[str, Any], known: set[str], family: str) -> None:
    """UnsupportedError for config keys that this family does not know (they could change the model)."""
    unknown = sorted(set(config) - known)
    if unknown:
        named = ", ".join(f"{quote(key)[1:-1]}={quote(config[key])}" for key in unknown[:4])
        raise UnsupportedError(
            f"config.json of family {family} has unknown keys: {named}", "remove them if they have no effect"
        )
