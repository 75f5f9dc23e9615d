"""The executable specification of every operator. Clarity first; speed where BLAS gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from dllm_core import quant
from dllm_core.backend import F32, F64, I64, Backend, Handle, Rows, Scores
from dllm_core.packing import Layout, Packed
from dllm_core.tensors import BF16, Tensor, widen

IN_PLACE = (32, 8)  # bits of the schemes whose packed files are what this backend computes with; others are unpacked


@dataclass(frozen=True)
class NumpyLinear:
    """Layout of this backend: row-major, as `dllm_core.quant` has it; bfloat16 weights are held as float32."""

    weight: F32 | quant.QuantisedWeight  # [N, K]
    bias: F32 | None  # [N]
    scheme: quant.Scheme


class NumpyBackend(Backend):
    """Reference implementation; see `dllm_core.backend.Backend` for shapes and meaning."""

    name = "numpy"
    schemes = tuple(quant.SCHEMES)
    default_scheme = "f32"

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        # BLAS has its own pool: it must not take more threads than the user gave
        threadpool_limits(limits=threads, user_api="blas")

    # ---- weights ----

    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> Handle:
        how = quant.get_scheme(scheme)
        bias = None if biases is None else np.concatenate([b.array() for b in biases])
        n, k = sum(w.shape[0] for w in weights), weights[0].shape[1]
        if not how.quantised:
            dense = np.empty((n, k), np.float32)
            for at, part in _chunks(weights, self.threads):
                dense[at : at + len(part)] = part if scheme == "f32" else _as_bf16(part)
            return NumpyLinear(dense, bias, how)
        codes, scales = np.empty((n, k), np.int8), np.empty((n, len(how.groups(k))), np.float32)
        for at, part in _chunks(weights, self.threads):
            piece = quant.quantise_weight(part, how)
            codes[at : at + len(part)], scales[at : at + len(part)] = piece.codes, piece.scales
        return NumpyLinear(quant.QuantisedWeight(codes, scales, how), bias, how)

    def unpack_linear(self, handle: Handle) -> tuple[npt.NDArray[Any], F32 | None]:
        w = handle.weight
        return (w.codes, w.scales) if isinstance(w, quant.QuantisedWeight) else (w, None)

    def linear_bytes(self, handle: Handle) -> int:
        return sum(a.nbytes for a in (*self.unpack_linear(handle), handle.bias) if a is not None)

    def layout(self, scheme: str) -> Layout:
        depth, zero = (2, 8) if quant.get_scheme(scheme).bits == 4 else (1, 0)
        return Layout("numpy", 1, "any", scheme, columns=1, depth=depth, zero=zero)

    def pack(self, handle: Handle) -> dict[str, npt.NDArray[Any]]:
        values, scales = self.unpack_linear(handle)
        found = {"weights": values} if scales is None else {"codes": values, "scales": scales}
        found = found if handle.bias is None else {**found, "bias": handle.bias}
        return found if handle.scheme.bits in IN_PLACE else self.layout(handle.scheme.name).write(found, *values.shape)

    def unpack_file(self, arrays: Mapping[str, npt.NDArray[Any]], meta: Packed) -> Handle:
        how, shape = meta.layout.how, (meta.n, meta.k)
        if how.bits not in IN_PLACE:
            arrays = meta.layout.read(arrays, *shape)
        bias = arrays.get("bias")
        if not how.quantised:
            return NumpyLinear(arrays["weights"].reshape(shape), bias, how)
        codes, scales = arrays["codes"].reshape(shape), arrays["scales"].reshape(meta.n, -1)
        return NumpyLinear(quant.QuantisedWeight(codes, scales, how), bias, how)

    # ---- primitives ----

    def embed(self, table: Tensor, ids: I64) -> F32:
        return table.gather(ids)

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32 | None = None) -> F32:
        mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
        out = np.multiply(x, np.float32(1) / np.sqrt(mean_square + np.float32(eps)), out=out)
        out *= weight
        return out

    def linear(self, x: F32, w: Handle, out: F32 | None = None) -> F32:
        if isinstance(w.weight, quant.QuantisedWeight):
            codes, scale = quant.quantise_rows(x)
            y = quant.rescale(quant.accumulate(codes, w.weight), scale, w.weight)
        else:
            y = np.matmul(x if w.scheme.bits == 32 else _as_bf16(x), w.weight.T)
        if w.bias is not None:
            y += w.bias
        return y if out is None else _into(out, y)

    def accumulators(self, x: F32, w: Handle) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
        codes, scale = quant.quantise_rows(x)
        return codes, scale, quant.accumulate(codes, w.weight)

    def rope(self, x: F32, heads: int, cos: F32, sin: F32, positions: I64) -> None:
        # rotate_half convention: pairs (j, j + D/2), as in the LLaDA and Qwen2 modelling files
        half = x.shape[1] // heads // 2
        view = x.reshape(x.shape[0], heads, 2 * half)
        a, b = view[..., :half].copy(), view[..., half:].copy()
        c, s = cos[positions][:, None, :], sin[positions][:, None, :]
        view[..., :half] = a * c - b * s
        view[..., half:] = b * c + a * s

    def attention(self, q: F32, k: F32, v: F32, rows: Rows, out: F32 | None = None) -> F32:
        r, heads, hd = q.shape
        shared = heads // k.shape[1]
        y = np.empty((r, heads, hd), np.float32) if out is None else out.reshape(r, heads, hd)
        scale = np.float32(1.0 / np.sqrt(hd))
        for s in range(len(rows.q_offsets) - 1):
            qa, qb = rows.q_offsets[s : s + 2]
            ka, kb = rows.kv_offsets[s : s + 2]
            if qa == qb:
                continue
            if ka == kb:
                y[qa:qb] = 0
                continue
            queries = q[qa:qb].transpose(1, 0, 2)  # [H, Q, D]
            keys = np.repeat(k[ka:kb].transpose(1, 2, 0), shared, axis=0)  # [H, D, T]
            values = np.repeat(v[ka:kb].transpose(1, 0, 2), shared, axis=0)  # [H, T, D]
            scores = (queries @ keys) * scale
            hidden = None if rows.visible is None else np.arange(kb - ka) >= rows.visible[qa:qb, None]  # [Q, T]
            if hidden is not None:
                scores[:, hidden] = -np.inf
                scores[:, hidden.all(axis=1)] = 0  # sees nothing: any finite number, its weights become zero below
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            if hidden is not None:
                scores[:, hidden] = 0
            y[qa:qb] = (scores @ values).transpose(1, 0, 2)
        return y.reshape(r, heads * hd)

    def swiglu(self, gate_up: F32, out: F32 | None = None) -> F32:
        m = gate_up.shape[1] // 2
        gate, up = gate_up[:, :m], gate_up[:, m:]
        with np.errstate(over="ignore"):  # exp(-gate) may reach infinity: silu is then 0, as it should be
            out = np.divide(gate, 1 + np.exp(-gate), out=out)
        out *= up
        return out

    def add_(self, x: F32, y: F32) -> None:
        x += y

    def statistics(self, logits: F32) -> Scores:
        r = len(logits)
        ids = logits.argmax(axis=1)
        top = logits[np.arange(r), ids]
        others = logits.copy()
        others[np.arange(r), ids] = -np.inf
        second = others.max(axis=1)
        shifted = logits - top[:, None]
        weight = np.exp(shifted)
        total = weight.sum(axis=1)
        # entropy = log sum(e^s) - sum(e^s s) / sum(e^s), with 0 * -inf taken as 0
        dot = (weight * np.where(weight > 0, shifted, 0)).sum(axis=1)
        log_total = np.log(total)
        return Scores(ids.astype(np.int64), top, second, top + log_total, log_total - dot / total)

    def choose(self, logits: F32, noise: F64, temperature: float) -> I64:
        with np.errstate(divide="ignore"):  # u = 0 gives -inf: never chosen
            noisy = logits.astype(np.float64) - temperature * np.log(-np.log(noise))
        return noisy.argmax(axis=1).astype(np.int64)


def _as_bf16(x: F32) -> F32:
    """x rounded to bfloat16, as float32."""
    return widen(quant.round_bf16(x), BF16)


def _chunks(weights: Sequence[Tensor], threads: int):
    """(first output row, float32 rows) over several weights stacked on top of each other."""
    base = 0
    for w in weights:
        for at, part in w.chunks(threads):
            yield base + at, part
        base += w.shape[0]


def _into(out: F32, y: F32) -> F32:
    out[...] = y
    return out
