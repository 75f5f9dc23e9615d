"""The operator interface: what a backend must do and what it may do better.

A backend subclasses `NumpyBackend` (package dllm_numpy), which implements every operator, and overrides what
it does faster. Level 1 are primitives. Level 2 are composites, written here with level 1 alone; the model
graphs call only the coarsest of them, so overriding `linear` reaches everything and overriding `layer`
replaces a whole transformer layer by one native call.

Rows are tokens: a batch is the rows of several sequences laid end to end, so there is no padding. Arrays are
float32 and C-contiguous unless said otherwise, R may be 0, and an argument is never changed unless its operator
works in place (`rope`, `add_`, `out`, key/value stores). A result belongs to the caller. A backend owns packed
layout, threads and scratch; it never changes the meaning of an operator or of a scheme (`dllm_core.quant`), and
its results do not depend on the thread count. docs/reference.md is made of the docstrings here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import UnsupportedError
from .packing import Layout, Packed
from .tensors import Tensor

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Opaque to the core: whatever `prepare_linear` of the same backend returned.
Handle = Any


@dataclass(frozen=True)
class Rows:
    """Which rows one forward pass runs, and what they see.

    Every sequence s owns the key/value slots kv_offsets[s]:kv_offsets[s+1], one per canvas position. A pass
    runs the R rows q_offsets[s]:q_offsets[s+1] of it, writes their keys and values to `slots` and lets them
    attend to all slots of the sequence. A plain pass runs all positions; a cached pass runs fewer; a sequence may
    run none. Offsets ascend from 0; no two rows write one slot.
    """

    positions: I64  # [R] position of each row in its sequence, for the rotary embedding
    slots: I64 | None  # [R] key/value slot that each row writes; None: queries only, nothing is written
    q_offsets: I64  # [S + 1] first row of each of S sequences, and R
    kv_offsets: I64  # [S + 1] first slot of each sequence, and the number of slots
    # [R] how many slots of its sequence, from the first on, each row sees; None: all of them (bidirectional).
    # `causal` and `block_causal` make it
    visible: I64 | None = None

    def __len__(self) -> int:
        return int(self.positions.shape[0])


@dataclass(frozen=True)
class LayerWeights:
    """One transformer layer, prepared. H query heads and G key/value heads of width D; d = model width."""

    attn_norm: F32  # [d]
    qkv: Handle  # [(H + 2 G) D, d], one fused projection, biases inside
    attn_out: Handle  # [d, H D]
    mlp_norm: F32  # [d]
    gate_up: Handle  # [2 m, d]: gate (gets SiLU) then up
    down: Handle  # [d, m]
    heads: int  # H
    kv_heads: int  # G, divides H
    head_dim: int  # D, even
    eps: float  # of both norms
    cos: F32  # [positions, D / 2]
    sin: F32  # [positions, D / 2]


class KVLayer(NamedTuple):
    """Keys (rotated) and values of one layer, as `Backend.allocate_kv` makes them. Backends may use another store."""

    k: F32  # [slots, G, D]
    v: F32  # [slots, G, D]


class Scores(NamedTuple):
    """Vocabulary statistics of R rows: all a decoder needs, without rows x vocabulary logits."""

    ids: I64  # [R] argmax, the lowest id on ties
    top: F32  # [R] its logit
    second: F32  # [R] the second largest logit
    logsumexp: F32  # [R] ln sum exp(logits)
    entropy: F32  # [R] of softmax(logits), nats

    @property
    def probability(self) -> F32:
        """softmax(logits) at `ids`."""
        return np.exp(self.top - self.logsumexp)


@dataclass
class Clock:
    """Seconds spent per kind of work ("gemm", "attention", "head", "sampling", "other"), summed over passes.

    Each second counts once: what a nested `time` measures is taken off the outer one.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    layers: dict[int, float] = field(default_factory=dict)  # the same by layer
    _nested: float = 0.0  # seconds measured inside the innermost open `time`

    def add(self, kind: str, seconds: float) -> None:
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def add_layer(self, number: int, seconds: float) -> None:
        self.layers[number] = self.layers.get(number, 0.0) + seconds

    @contextmanager
    def time(self, kind: str) -> Iterator[None]:
        outer, self._nested = self._nested, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.add(kind, elapsed - self._nested)
            self._nested = outer + elapsed


class Backend(ABC):
    """The operators. See the module docstring for the rules; subclass `dllm_numpy.NumpyBackend`."""

    name: str = ""  # as it is registered
    isa: str = "portable"  # the instruction set the kernels were chosen for
    schemes: tuple[str, ...] = ("f32",)  # what `prepare_linear` takes
    default_scheme: str = "f32"  # one of them, where the user names none

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.clock = Clock()

    # ---- level 1: weights -------------------------------------------------------------------------------

    @abstractmethod
    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> Handle:
        """Pack weights [N_i, K] (stored as F32, F16 or BF16; read them in chunks) and biases [N_i] for `linear`.

        Several weights make one projection of N = sum(N_i) outputs, in order; each output keeps its own scales. The
        handle is opaque to the core, immutable, and owns its memory: the tensors may be unmapped afterwards.
        UnsupportedError for a scheme that is not in `schemes`.
        """

    @abstractmethod
    def unpack_linear(self, handle: Handle) -> tuple[npt.NDArray[Any], F32 | None]:
        """(codes int8 [N, K], scales float32 [N, G]) of a quantised handle, else (float32 [N, K], None).

        The codes and scales of `dllm_core.quant.quantise_weight`, bit for bit. For tests and tools.
        """

    @abstractmethod
    def linear_bytes(self, handle: Handle) -> int:
        """Bytes that the packed weight occupies: codes, scales and bias, with what pads them."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of working memory that are kept between calls. It may grow when more rows come than ever before."""
        return 0

    # ---- level 1: packed weights as arrays, for model files ---------------------------------------------

    def layout(self, scheme: str) -> Layout:
        """How `pack` lays a weight of this scheme out here. UnsupportedError for a backend without packed files.

        Override `layout`, `pack` and `unpack_file` together, or none of them: a backend whose `prepare_linear` makes
        handles of its own and that inherits these three has no packed files.
        """
        raise UnsupportedError(f"backend {self.name} has no packed files", "give the model that was not packed")

    def pack(self, handle: Handle) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a prepared weight, named as in `layout(scheme).arrays` and in its order of elements.

        Views are fine: the caller copies them to a file.
        """
        raise UnsupportedError(f"backend {self.name} cannot write packed models", "choose another --backend")

    def unpack_file(self, arrays: Mapping[str, npt.NDArray[Any]], meta: Packed) -> Handle:
        """The handle of a weight that lies in `arrays` (usually read-only and memory-mapped), used where they lie.

        meta.layout is `layout(meta.layout.scheme)`: other layouts are rearranged before. The handle keeps the arrays
        alive. ValueError if sizes are not those of meta.
        """
        raise UnsupportedError(f"backend {self.name} cannot use packed models", "give the model that was not packed")

    # ---- level 1: primitives ----------------------------------------------------------------------------

    @abstractmethod
    def embed(self, table: Tensor, ids: I64) -> F32:
        """Rows of the embedding table [V, d] (stored as F32, F16 or BF16): ids int64 [R] -> float32 [R, d].

        Exact: widening rounds nothing. The core has checked that ids lie in 0..V-1.
        """

    @abstractmethod
    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32 | None = None) -> F32:
        """x / sqrt(mean(x^2) + eps) * weight: x [R, d], weight [d] -> [R, d], mean over d in float32.

        out: [R, d], written and returned, not x.
        """

    @abstractmethod
    def linear(self, x: F32, w: Handle, out: F32 | None = None) -> F32:
        """x [R, K] times the weights, plus the bias: [R, N], with the scheme the handle was prepared for.

        Quantised: rows become int8 codes by `quant.quantise_rows`, sums are exact in int32, and only their scaling
        rounds. A row with NaN or infinity gives a row of NaN. out: [R, N], written and returned, not x.
        ValueError for another K.
        """

    @abstractmethod
    def accumulators(self, x: F32, w: Handle) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
        """The integers behind a quantised `linear`: codes int8 [R, K] and scale float32 [R] of the rows, and int32
        [G, R, N] sums of their products with the weights' codes, per group of inputs.

        They equal `quant.quantise_rows` and `quant.accumulate` bit for bit. For checks; never called by models.
        """

    @abstractmethod
    def rope(self, x: F32, heads: int, cos: F32, sin: F32, positions: I64) -> None:
        """Rotate x [R, heads * D] in place: element j of the first half of a head pairs with j of the second.

        cos, sin: [positions, D / 2]; positions int64 [R], in any order and repeated at will.
        """

    @abstractmethod
    def attention(self, q: F32, k: F32, v: F32, rows: Rows, out: F32 | None = None) -> F32:
        """softmax(q k^T / sqrt(D)) v within each sequence: q [R, H, D], k and v [slots, G, D] -> [R, H * D].

        Query heads g*r..g*r+r-1 share key/value head g, r = H / G. Rows of sequence s see its slots and no others: all
        of them, or the leading ones that `rows.visible` allows; a row that sees none gives zeros. out: [R, H * D],
        written and returned, not an input.
        """

    @abstractmethod
    def swiglu(self, gate_up: F32, out: F32 | None = None) -> F32:
        """silu(first half) * second half of gate_up [R, 2 m] -> [R, m], where silu(x) = x / (1 + exp(-x)).

        Gates far below zero give 0, not NaN. out: [R, m], written and returned.
        """

    @abstractmethod
    def add_(self, x: F32, y: F32) -> None:
        """x += y, in place: two arrays of one shape. One rounding, so exact."""

    @abstractmethod
    def statistics(self, logits: F32) -> Scores:
        """Vocabulary statistics of logits [R, V], V at least 1. -inf entries count as probability zero.

        `ids`, `top` and `second` are exact; sums may be taken in any order.
        """

    @abstractmethod
    def choose(self, logits: F32, noise: F64, temperature: float) -> I64:
        """Gumbel-max sampling in float64: argmax of logits - T ln(-ln u) for u = noise float64 [R, V] in [0, 1).

        logits float32 [R, V] -> ids int64 [R]. Where u is 0 or the logit -inf a token is never chosen. Exact.
        """

    # ---- level 2: composites ----------------------------------------------------------------------------

    def norm_linear(self, x: F32, norm: F32, eps: float, w: Handle) -> F32:
        """linear(rms_norm(x)): x [R, K], norm [K] -> [R, N]. Normalises once, quantises once, one fused projection."""
        return self.linear(self.rms_norm(x, norm, eps), w)

    def allocate_kv(self, layers: int, slots: int, kv_heads: int, head_dim: int) -> list[Any]:
        """One key/value store per layer, opaque to the core; `kv` below is one of them. Zeros at first.

        Default: a `KVLayer` each. It lives as long as a decode. A backend that overrides it overrides
        `attention_block` or `layer` too, which alone look inside.
        """
        shape = (slots, kv_heads, head_dim)
        return [KVLayer(np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _ in range(layers)]

    def attention_block(self, x: F32, w: LayerWeights, kv: Any, rows: Rows, keep: I64 | None = None) -> F32:
        """x + attn_out(attention(rope(qkv(norm(x))))): x [R, d] -> [R, d], or [len(keep), d].

        Keys (rotated) and values of all R rows go to `rows.slots` of `kv` first, unless that is None. keep: int64,
        ascending, the rows that attend and are returned; None for all.
        """
        h, g, hd = w.heads, w.kv_heads, w.head_dim
        with self.clock.time("gemm"):
            qkv = self.norm_linear(x, w.attn_norm, w.eps, w.qkv)
        with self.clock.time("attention"):
            q, k, v = (np.ascontiguousarray(part) for part in np.split(qkv, [h * hd, (h + g) * hd], axis=1))
            if rows.slots is not None:
                self.rope(k, g, w.cos, w.sin, rows.positions)
                kv.k[rows.slots] = k.reshape(-1, g, hd)
                kv.v[rows.slots] = v.reshape(-1, g, hd)
            if keep is not None:
                q, x, rows = q[keep], x[keep], select_rows(rows, keep)
            self.rope(q, h, w.cos, w.sin, rows.positions)
            a = self.attention(q.reshape(-1, h, hd), kv.k, kv.v, rows)
        with self.clock.time("gemm"):
            y = self.linear(a, w.attn_out)
        self.add_(y, x)
        return y

    def mlp(self, x: F32, w: LayerWeights) -> F32:
        """x + down(swiglu(gate_up(norm(x)))): x [R, d] -> [R, d]."""
        with self.clock.time("gemm"):
            gate_up = self.norm_linear(x, w.mlp_norm, w.eps, w.gate_up)
        with self.clock.time("other"):
            act = self.swiglu(gate_up)
        with self.clock.time("gemm"):
            y = self.linear(act, w.down)
        self.add_(y, x)
        return y

    def layer(self, x: F32, w: LayerWeights, kv: Any, rows: Rows, keep: I64 | None = None) -> F32:
        """One transformer layer: x [R, d] -> [R, d], or only the rows `keep` of it (int64, ascending): [len(keep), d].

        `keep` changes which rows come back, never their values beyond rounding.
        """
        return self.mlp(self.attention_block(x, w, kv, rows, keep), w)

    def layers(
        self, x: F32, layers: Sequence[LayerWeights], kv: Sequence[Any], rows: Rows, keep: I64 | None = None
    ) -> F32:
        """All layers, one after the other, each with its `kv`: x [R, d] -> [R, d], or [len(keep), d] from the last.

        What the graphs call. An override tells `clock.add_layer` each layer's seconds.
        """
        for i, (w, store) in enumerate(zip(layers, kv, strict=True)):
            start = time.perf_counter()
            x = self.layer(x, w, store, rows, keep if i == len(layers) - 1 else None)
            self.clock.add_layer(i, time.perf_counter() - start)
        return x

    def score(self, h: F32, head: Handle) -> Scores:
        """Vocabulary statistics of linear(h, head): h [R, d], already normalised, head of N = V outputs.

        In blocks of rows or of the vocabulary: logits of all rows never exist together. What the graphs call.
        """
        with self.clock.time("head"):
            parts = [self.statistics(self.linear(h[at : at + 64], head)) for at in range(0, max(len(h), 1), 64)]
            return Scores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def select_rows(rows: Rows, keep: I64) -> Rows:
    """The pass restricted to the query rows `keep` (ascending); nothing is written."""
    q_offsets = np.searchsorted(keep, rows.q_offsets).astype(np.int64)
    visible = None if rows.visible is None else rows.visible[keep]
    return Rows(rows.positions[keep], None, q_offsets, rows.kv_offsets, visible)


def causal(rows: Rows) -> Rows:
    """`rows` with attention to the own position and those before it."""
    return block_causal(rows, 1)


def block_causal(rows: Rows, block_length: int) -> Rows:
    """`rows` with attention to the own block of positions, in both directions, and to all blocks before it.

    Blocks are counted from position 0 of the sequence; the last one may be shorter. ValueError for a block_length
    below 1.
    """
    if block_length < 1:
        raise ValueError(f"block_length must be at least 1, got {block_length}")
    slots = np.repeat(np.diff(rows.kv_offsets), np.diff(rows.q_offsets))
    visible = np.minimum((rows.positions // block_length + 1) * block_length, slots)
    return replace(rows, visible=visible.astype(np.int64))
