"""Backend "torch": linear layers, attention, whole layers and vocabulary statistics in PyTorch.

Weights, keys and values stay on the device. Rows come and go as numpy arrays, which on the CPU costs nothing: both
sides see the same memory. What is not here (embedding, rotation by itself, sampling) is the reference's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from dllm_numpy.backend import NumpyBackend
from torch.nn import functional as F

from dllm_core.backend import F32, I64, Handle, KVLayer, LayerWeights, Rows, Scores, select_rows
from dllm_core.errors import UnsupportedError
from dllm_core.tensors import Tensor

T = torch.Tensor
BLOCK = 64  # rows whose logits exist at a time
ONE_DNN = torch.backends.mkldnn.is_available()


@dataclass(frozen=True)
class TorchLinear:
    """A projection on the device. Scheme bf16: rounded weights, on the CPU held as float32, on CUDA as bfloat16."""

    weight: T  # [N, K]
    bias: T | None  # [N]
    scheme: str


@dataclass(frozen=True)
class LayerArrays:
    """What a layer has besides its projections, on the device."""

    attn_norm: T  # [d]
    mlp_norm: T  # [d]
    cos: T  # [positions, D / 2]
    sin: T


class TorchBackend(NumpyBackend):
    """float32 and bfloat16 on `isa` "cuda" or "cpu", by default the device if there is one.

    Scheme bf16 on the CPU rounds to bfloat16 here and lets torch multiply in it, where the CPU has instructions for
    that; sums are float32 either way.
    """

    name = "torch"
    schemes = ("f32", "bf16")
    default_scheme = "f32"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        super().__init__(threads)
        self.isa = isa or self.isa_rows()[0]
        self.device = torch.device(self.isa)
        self._layers: dict[int, LayerArrays] = {}

    def isa_rows(self) -> list[str]:
        """The devices that can run here, best first."""
        return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]

    def with_isa(self, isa: str) -> TorchBackend:
        """The same backend on another device."""
        return TorchBackend(self.threads, isa)

    # ---- the edge between numpy and torch ----

    @contextmanager
    def _torch(self) -> Iterator[None]:
        """torch without gradients, on this backend's number of threads."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        with torch.inference_mode():
            yield

    def _in(self, x: npt.NDArray[Any]) -> T:
        return torch.from_numpy(x if x.flags.writeable else x.copy()).to(self.device)

    @staticmethod
    def _out(y: T, out: F32 | None = None) -> F32:
        if out is None:
            return y.cpu().numpy()
        out[...] = y.cpu().numpy().reshape(out.shape)
        return out

    # ---- weights ----

    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> Handle:
        if scheme not in self.schemes:
            choices = ", ".join(self.schemes)
            raise UnsupportedError(f"backend torch has no scheme {scheme!r}", f"choose one of: {choices}")
        dense = super().prepare_linear(weights, scheme, biases)  # float32, already rounded for bf16
        weight = self._in(dense.weight)
        if scheme == "bf16" and self.isa == "cuda":
            weight = weight.bfloat16()
        return TorchLinear(weight, None if dense.bias is None else self._in(dense.bias), scheme)

    def unpack_linear(self, handle: TorchLinear) -> tuple[npt.NDArray[Any], F32 | None]:
        return handle.weight.float().cpu().numpy(), None

    def linear_bytes(self, handle: TorchLinear) -> int:
        return handle.weight.nbytes + (0 if handle.bias is None else handle.bias.nbytes)

    def allocate_kv(self, layers: int, slots: int, kv_heads: int, head_dim: int) -> list[Any]:
        stores = torch.zeros(layers, 2, slots, kv_heads, head_dim, device=self.device)
        return [KVLayer(*store) for store in stores]

    # ---- operators as the interface has them ----

    def linear(self, x: F32, w: TorchLinear, out: F32 | None = None) -> F32:
        with self._torch():
            return self._out(self._linear(self._in(x), w), out)

    def attention(self, q: F32, k: F32, v: F32, rows: Rows, out: F32 | None = None) -> F32:
        with self._torch():
            return self._out(self._attention(self._in(q), self._in(k), self._in(v), rows), out)

    def attention_block(self, x: F32, w: LayerWeights, kv: Any, rows: Rows, keep: I64 | None = None) -> F32:
        with self._torch():
            return self._out(self._attention_block(self._in(x), w, kv, rows, keep))

    def mlp(self, x: F32, w: LayerWeights) -> F32:
        with self._torch():
            return self._out(self._mlp(self._in(x), w))

    def layer(self, x: F32, w: LayerWeights, kv: Any, rows: Rows, keep: I64 | None = None) -> F32:
        with self._torch():
            return self._out(self._mlp(self._attention_block(self._in(x), w, kv, rows, keep), w))

    def score(self, h: F32, head: TorchLinear) -> Scores:
        with self._torch(), self.clock.time("head"):
            x = self._in(h)
            parts = [_statistics(self._linear(x[at : at + BLOCK], head)) for at in range(0, max(len(h), 1), BLOCK)]
            return Scores(*(self._out(torch.cat(column)) for column in zip(*parts, strict=True)))

    # ---- the same on tensors ----

    def _linear(self, x: T, w: TorchLinear) -> T:
        if w.scheme == "f32":
            return _on_one_dnn(x, w) if self.isa == "cpu" and ONE_DNN else F.linear(x, w.weight, w.bias)
        x = x.bfloat16()
        if self.isa == "cuda":
            y = torch.mm(x, w.weight.t(), out_dtype=torch.float32)
        else:
            with _products_in_bf16():
                y = x.float() @ w.weight.t()
        return y if w.bias is None else y.add_(w.bias)

    def _attention(self, q: T, k: T, v: T, rows: Rows) -> T:
        """q [R, H, D], k and v [slots, G, D] -> [R, H * D], one sequence after the other."""
        shared = q.shape[1] // k.shape[1]
        visible = None if rows.visible is None else self._in(rows.visible)[:, None]  # [R, 1]
        y = torch.zeros_like(q)
        for s in range(len(rows.q_offsets) - 1):
            (qa, qb), (ka, kb) = rows.q_offsets[s : s + 2].tolist(), rows.kv_offsets[s : s + 2].tolist()
            if qa == qb or ka == kb:
                continue
            queries = q[qa:qb].transpose(0, 1)[None]  # [1, H, Q, D]
            keys, values = (t[ka:kb].transpose(0, 1).repeat_interleave(shared, 0)[None] for t in (k, v))
            seen = None if visible is None else torch.arange(kb - ka, device=q.device) < visible[qa:qb]  # [Q, T]
            y[qa:qb] = _attend(queries, keys, values, seen)[0, :, : qb - qa].transpose(0, 1)
        y = y.flatten(1)
        return y if visible is None else y.masked_fill_(visible == 0, 0)

    def _attention_block(self, x: T, w: LayerWeights, kv: KVLayer, rows: Rows, keep: I64 | None) -> T:
        h, g, hd = w.heads, w.kv_heads, w.head_dim
        arrays = self._arrays(w)
        with self._timed("gemm"):
            qkv = self._linear(_norm(x, arrays.attn_norm, w.eps), w.qkv)
        with self._timed("attention"):
            q, k, v = (part.unflatten(1, (-1, hd)) for part in qkv.split([h * hd, g * hd, g * hd], 1))
            if rows.slots is not None:
                slots = self._in(rows.slots)
                kv.k[slots], kv.v[slots] = self._rotated(k, arrays, rows.positions), v
            if keep is not None:
                kept = self._in(keep)
                q, x, rows = q[kept], x[kept], select_rows(rows, keep)
            a = self._attention(self._rotated(q, arrays, rows.positions), kv.k, kv.v, rows)
        with self._timed("gemm"):
            return self._linear(a, w.attn_out) + x

    def _mlp(self, x: T, w: LayerWeights) -> T:
        with self._timed("gemm"):
            gate, up = self._linear(_norm(x, self._arrays(w).mlp_norm, w.eps), w.gate_up).chunk(2, 1)
        with self._timed("other"):
            act = F.silu(gate) * up
        with self._timed("gemm"):
            return self._linear(act, w.down) + x

    def _rotated(self, x: T, w: LayerArrays, positions: I64) -> T:
        at = self._in(positions)
        cos, sin = w.cos[at][:, None], w.sin[at][:, None]
        a, b = x.chunk(2, 2)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), 2)

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        """The clock; work on a device is waited for, so that it counts where it belongs."""
        with self.clock.time(kind):
            yield
            if self.isa == "cuda":
                torch.cuda.synchronize()

    def _arrays(self, w: LayerWeights) -> LayerArrays:
        """What `w` has besides projections, brought to the device once and dropped with it."""
        key = id(w)
        if key not in self._layers:
            self._layers[key] = LayerArrays(*(self._in(a) for a in (w.attn_norm, w.mlp_norm, w.cos, w.sin)))
            weakref.finalize(w, self._layers.pop, key, None)
        return self._layers[key]


def _norm(x: T, weight: T, eps: float) -> T:
    return F.rms_norm(x, weight.shape, weight, eps)


def _statistics(logits: T) -> tuple[T, T, T, T, T]:
    """The fields of `Scores` of logits [R, V]; the lowest id on ties, which torch's argmax does not promise."""
    top = logits.amax(1)
    places = torch.arange(logits.shape[1], device=logits.device)
    ids = torch.where((logits == top[:, None]) | logits.isnan(), places, logits.shape[1]).amin(1)
    second = logits.scatter(1, ids[:, None], -torch.inf).amax(1)
    shifted = logits - top[:, None]
    weight = shifted.exp()
    total = weight.sum(1)
    dot = (weight * torch.where(weight > 0, shifted, 0)).sum(1)
    return ids, top, second, top + total.log(), total.log() - dot / total


def _on_one_dnn(x: T, w: TorchLinear) -> T:
    """F.linear by the library whose sums do not depend on the number of threads, as those of torch's default do."""
    return torch.ops.mkldnn._linear_pointwise(x, w.weight, w.bias, "none", [], "")


def _attend(q: T, k: T, v: T, seen: T | None) -> T:
    """q [1, H, Q, D], k and v [1, H, T, D] -> [1 or 2, H, Q or more, D].

    torch computes one row, and few rows of one head, in ways of their own whose sums depend on the number of threads.
    """
    if q.shape[2] == 1:
        q, seen = q.expand(-1, -1, 2, -1), None if seen is None else seen.expand(2, -1)
    if q.shape[1] == 1:
        q, k, v = (t.expand(2, -1, -1, -1) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@contextmanager
def _products_in_bf16() -> Iterator[None]:
    """float32 matrices may be multiplied in bfloat16, summed in float32: exact for values that are bfloat16 already."""
    setting = torch.backends.mkldnn.matmul
    before, setting.fp32_precision = setting.fp32_precision, "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before
