"""Backend "cffi-simd": the operators in C. Checks and marshals here, computes in csrc/ (interface: dllm.h)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dllm_numpy.backend import NumpyBackend

from dllm_core import quant
from dllm_core.backend import F32, I64, Handle, LayerWeights, Rows, Scores, select_rows
from dllm_core.errors import UnsupportedError
from dllm_core.packing import Layout, Packed, lines
from dllm_core.tensors import Tensor

from ._native import ffi, lib
from .marshal import (
    CLayer,
    CRows,
    NativeKV,
    aligned,
    call,
    checked,
    floats,
    in_place,
    kv_store,
    longs,
    new_scores,
    output,
    pointer,
)
from .rows import all_rows, choose_row, supported_rows

SCHEME_CODES = {
    "f32": lib.DLLM_F32,
    "bf16": lib.DLLM_BF16,
    "qd8-f32-qc8w": lib.DLLM_QC8W,
    "qd8-f32-qb8w": lib.DLLM_QB8W,
    "qd8-f32-qb4w": lib.DLLM_QB4W,
}
# Of one call at most: the time until Ctrl-C is heard, some tenths of a second.
PRODUCTS_PER_CALL = 1 << 36
STORED_CODES = {"F32": 0, "BF16": 1, "F16": 2}


@dataclass(frozen=True)
class CffiLinear:
    """A packed weight: the C struct and the arrays it points into."""

    struct: Any
    scheme: quant.Scheme
    arrays: tuple[npt.NDArray[np.uint8], ...]
    n: int
    k: int


class CffiBackend(NumpyBackend):
    """C kernels on the dispatch row `isa`, by default the best one or the one that DLLM_ISA names.

    See `dllm_core.backend.Backend` for shapes and meaning. Scratch is kept per calling thread and reused.
    """

    name = "cffi-simd"
    schemes = tuple(SCHEME_CODES)
    default_scheme = "qd8-f32-qb8w"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        super().__init__(min(threads, lib.DLLM_MAX_THREADS))
        self.row = choose_row(isa)
        self.isa = all_rows()[self.row]
        self._local = threading.local()
        self._layers: dict[int, CLayer] = {}

    def isa_rows(self) -> list[str]:
        """Instruction sets that can run here, best first."""
        return supported_rows()

    def with_isa(self, isa: str) -> CffiBackend:
        """The same backend on another row."""
        return type(self)(self.threads, isa)

    # ---- weights ----

    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> Handle:
        how = quant.get_scheme(scheme)
        if scheme not in SCHEME_CODES:
            raise UnsupportedError(
                f"backend {self.name} has no scheme {scheme!r}", f"choose one of: {', '.join(self.schemes)}"
            )
        k = weights[0].shape[1]
        if k > lib.DLLM_MAX_K:
            raise UnsupportedError(f"{weights[0].name}: {k} inputs are more than the {lib.DLLM_MAX_K} of a layer")
        w = self._new(sum(t.shape[0] for t in weights), k, scheme)
        arrays = [aligned(lib.dllm_weight_bytes(w)), aligned(lib.dllm_scale_bytes(w))]
        w.weight, w.scale = pointer(arrays[0]), floats(arrays[1])
        if biases is not None:
            arrays.append(aligned(lib.dllm_bias_bytes(w)))
            bias = arrays[2].view(np.float32)
            bias[:] = 0
            bias[: w.n] = np.concatenate([b.array() for b in biases])
            w.bias = floats(bias)
        first = 0
        for tensor in weights:
            for at, chunk in tensor.chunks(threads=self.threads):
                part = checked(chunk, np.float32, (len(chunk), k))
                call(lib.dllm_pack(self.threads, w, floats(part), first + at, len(part)))
            first += tensor.shape[0]
        return CffiLinear(w, how, tuple(arrays), w.n, w.k)

    def _new(self, n: int, k: int, scheme: str) -> Any:
        """A C struct for a weight on this row; it points nowhere yet."""
        return ffi.new("dllm_linear *", {"n": n, "k": k, "scheme": SCHEME_CODES[scheme], "row": self.row})

    def layout(self, scheme: str) -> Layout:
        shape = ffi.new("dllm_panels *")
        call(lib.dllm_panel_shape(self._new(1, 1, scheme), shape))
        return Layout(self.name, 1, self.isa, scheme, shape.columns, shape.depth, shape.zero_point)

    def pack(self, handle: CffiLinear) -> dict[str, npt.NDArray[Any]]:
        weight, scale, *bias = handle.arrays
        found = {"codes": weight, "scales": scale} if handle.scheme.quantised else {"weights": weight}
        return {**found, "bias": bias[0]} if bias else found

    def unpack_file(self, arrays: Mapping[str, npt.NDArray[Any]], meta: Packed) -> Handle:
        w, how = self._new(meta.n, meta.k, meta.layout.scheme), quant.get_scheme(meta.layout.scheme)
        names = ["codes" if how.quantised else "weights", "scales", "bias"]
        held = [lines(arrays[name]).reshape(-1).view(np.uint8) if name in arrays else None for name in names]
        wanted = (lib.dllm_weight_bytes(w), lib.dllm_scale_bytes(w), lib.dllm_bias_bytes(w))
        for array, size in zip(held, wanted, strict=True):
            if array is not None and array.nbytes != size:
                raise ValueError(f"a packed weight [{meta.n}, {meta.k}] has {array.nbytes} bytes, not {size}")
        weight, scale, bias = held
        w.weight, w.scale = pointer(weight), ffi.NULL if scale is None else floats(scale)
        w.bias = ffi.NULL if bias is None else floats(bias)
        scale = np.empty(0, np.uint8) if scale is None else scale
        return CffiLinear(w, how, (weight, scale) if bias is None else (weight, scale, bias), w.n, w.k)

    def unpack_linear(self, handle: CffiLinear) -> tuple[npt.NDArray[Any], F32 | None]:
        n, k = handle.n, handle.k
        if not handle.scheme.quantised:
            values = np.empty((n, k), np.float32)
            call(lib.dllm_unpack(handle.struct, ffi.NULL, ffi.NULL, floats(values)))
            return values, None
        codes, scales = np.empty((n, k), np.int8), np.empty((n, lib.dllm_groups(handle.struct)), np.float32)
        call(lib.dllm_unpack(handle.struct, pointer(codes, "int8_t *"), floats(scales), ffi.NULL))
        return codes, scales

    def linear_bytes(self, handle: CffiLinear) -> int:
        return sum(a.nbytes for a in handle.arrays)

    # ---- primitives ----

    def embed(self, table: Tensor, ids: I64) -> F32:
        if table.dtype not in STORED_CODES or not table.raw.flags.c_contiguous:
            return super().embed(table, ids)
        ids = np.ascontiguousarray(ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < table.shape[0]:
            raise IndexError(f"token ids must be in 0..{table.shape[0] - 1}")
        out = np.empty((len(ids), table.shape[1]), np.float32)
        stored = STORED_CODES[table.dtype]
        at = (pointer(table.raw), stored, out.shape[1], longs(ids), len(ids), floats(out))
        call(lib.dllm_embed(self.row, self.threads, *at))
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32 | None = None) -> F32:
        x, weight = checked(x, np.float32, (len(x), x.shape[-1])), checked(weight, np.float32, x.shape[-1:])
        out = output(out, x.shape)
        call(lib.dllm_rms_norm(self.row, self.threads, floats(x), floats(weight), eps, *x.shape, floats(out)))
        return out

    def linear(self, x: F32, w: CffiLinear, out: F32 | None = None) -> F32:
        return self._linear(lib.DLLM_PLAIN, x, w, out)

    def norm_linear(self, x: F32, norm: F32, eps: float, w: CffiLinear) -> F32:
        return self._linear(lib.DLLM_NORMED, x, w, None, checked(norm, np.float32, (w.k,)), eps)

    def _linear(
        self, kind: int, x: F32, w: CffiLinear, out: F32 | None, norm: F32 | None = None, eps: float = 0.0
    ) -> F32:
        x = checked(x, np.float32, (len(x), w.k))
        out = output(out, (len(x), w.n))
        if len(x) == 0:
            return out
        source = ffi.new("dllm_input *")
        source.kind, source.eps, source.x = kind, eps, floats(x)
        if norm is not None:
            source.norm = floats(norm)
        scratch = self._scratch(lib.dllm_linear_scratch(w.struct, self.threads, len(x)))
        call(lib.dllm_linear_run(self.threads, w.struct, source, len(x), floats(out), ffi.NULL, scratch))
        return out

    def accumulators(self, x: F32, w: CffiLinear) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
        x = checked(x, np.float32, (len(x), w.k))
        codes, scale = np.empty(x.shape, np.int8), np.empty(len(x), np.float32)
        acc = np.empty((lib.dllm_groups(w.struct), len(x), w.n), np.int32)
        if len(x) == 0:
            return codes, scale, acc
        scratch = self._scratch(lib.dllm_linear_scratch(w.struct, self.threads, len(x)))
        at = (pointer(codes, "int8_t *"), floats(scale), pointer(acc, "int32_t *"), scratch)
        call(lib.dllm_accumulators(self.threads, w.struct, floats(x), len(x), *at))
        return codes, scale, acc

    def rope(self, x: F32, heads: int, cos: F32, sin: F32, positions: I64) -> None:
        head_dim = 2 * cos.shape[1]
        if x.size != len(x) * heads * head_dim:
            raise ValueError(f"expected {len(x)} rows of {heads} heads of {head_dim}, got shape {x.shape}")
        in_place(x, "x")
        if len(x) and not 0 <= positions.min() <= positions.max() < len(cos):
            raise ValueError(f"positions must be in 0..{len(cos) - 1}")
        cos, sin = (checked(t, np.float32, (len(t), head_dim // 2)) for t in (cos, sin))
        positions = checked(positions, np.int64, (len(x),))
        at = (floats(cos), floats(sin), longs(positions), len(x))
        call(lib.dllm_rope(self.row, self.threads, floats(x), heads, head_dim, *at))

    def attention(self, q: F32, k: F32, v: F32, rows: Rows, out: F32 | None = None) -> F32:
        heads, head_dim = q.shape[1:]
        q = checked(q, np.float32, (len(rows), heads, head_dim))
        k, v = (checked(t, np.float32, (len(t), k.shape[1], head_dim)) for t in (k, v))
        out = output(out, (len(q), heads * head_dim))
        c_rows = self._rows(rows)
        if c_rows.slots > min(len(k), len(v)):
            raise ValueError(f"rows reach key/value slot {c_rows.slots} of {len(k)}")
        scratch = self._scratch(lib.dllm_attention_scratch(self.row, self.threads, head_dim))
        at = (heads, k.shape[1], head_dim, c_rows.struct, floats(out), scratch)
        call(lib.dllm_attention_run(self.row, self.threads, floats(q), floats(k), floats(v), *at))
        return out

    def swiglu(self, gate_up: F32, out: F32 | None = None) -> F32:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        gate_up = checked(gate_up, np.float32, (rows, 2 * width))
        out = output(out, (rows, width))
        call(lib.dllm_swiglu(self.row, self.threads, floats(gate_up), rows, width, floats(out)))
        return out

    def add_(self, x: F32, y: F32) -> None:
        if not (x.flags.c_contiguous and x.dtype == np.float32):
            return super().add_(x, y)
        y = checked(y, np.float32, x.shape)
        call(lib.dllm_add(self.row, self.threads, floats(x), floats(y), x.size))

    def statistics(self, logits: F32) -> Scores:
        logits = checked(logits, np.float32, (len(logits), logits.shape[1]))
        scores, struct = new_scores(len(logits))
        if len(logits):
            scratch = self._scratch(lib.dllm_statistics_scratch(*logits.shape))
            call(lib.dllm_statistics_run(self.row, self.threads, floats(logits), *logits.shape, struct, scratch))
        return scores

    # ---- composites ----

    def score(self, h: F32, head: CffiLinear) -> Scores:
        h = checked(h, np.float32, (len(h), head.k))
        scores, struct = new_scores(len(h))
        with self.clock.time("head"):
            if len(h):
                scratch = self._scratch(lib.dllm_score_scratch(head.struct, self.threads, len(h)))
                call(lib.dllm_score(self.threads, head.struct, floats(h), len(h), struct, scratch))
        return scores

    def layer(self, x: F32, w: LayerWeights, kv: Any, rows: Rows, keep: I64 | None = None) -> F32:
        if len(rows) == 0 or (keep is not None and len(keep) == 0):
            return super().layer(x, w, kv, rows, keep)
        return self.layers(x, [w], [kv], rows, keep)

    def layers(
        self, x: F32, layers: Sequence[LayerWeights], kv: Sequence[Any], rows: Rows, keep: I64 | None = None
    ) -> F32:
        if not layers or len(rows) == 0 or (keep is not None and len(keep) == 0):
            return super().layers(x, layers, kv, rows, keep)
        x = checked(x, np.float32, (len(rows), layers[0].qkv.k))
        every, of_c = self._rows(rows), [self._layer(w) for w in layers]
        stores = [
            store.store if isinstance(store, NativeKV) else kv_store(store, w.kv_heads, w.head_dim)
            for w, store in zip(layers, kv, strict=True)
        ]
        for layer, store in zip(of_c, kv, strict=True):
            self._check_reach(every, layer.positions, min(len(store.k), len(store.v)))
        step = max(1, PRODUCTS_PER_CALL // (len(rows) * of_c[0].products))
        for at in range(0, len(layers), step):
            last = at + step >= len(layers)
            x = self._run_layers(x, of_c[at : at + step], stores[at : at + step], every, keep if last else None, at)
        return x

    def _run_layers(
        self, x: F32, layers: list[CLayer], stores: list[Any], every: CRows, keep: I64 | None, first: int
    ) -> F32:
        """One call: x [R, d] through `layers`, of which the first is number `first` of the model."""
        queries, kept = every, ffi.NULL
        if keep is not None:
            keep = np.ascontiguousarray(keep, np.int64)
            queries, kept = CRows.of(select_rows(every.rows, keep)), longs(keep)
        weights = ffi.new("dllm_layer *[]", [layer.struct for layer in layers])
        size = lib.dllm_layers_scratch(len(layers), weights, self.threads, len(x))
        out, seconds = output(None, (len(queries.rows), x.shape[1])), ffi.new("dllm_seconds[]", len(layers))
        at = (kept, floats(x), ffi.new("dllm_kv *[]", stores), floats(out), self._scratch(size), seconds)
        call(lib.dllm_layers_run(self.threads, len(layers), weights, every.struct, queries.struct, *at))
        for i, spent in enumerate(seconds):
            self.clock.add("gemm", spent.gemm)
            self.clock.add("attention", spent.attention)
            self.clock.add_layer(first + i, spent.gemm + spent.attention)
        return out

    def allocate_kv(self, layers: int, slots: int, kv_heads: int, head_dim: int) -> list[Any]:
        """Stores [slots, G, D] whose heads lie in one piece each: attention reads them as streams."""
        stores = [np.zeros((2, kv_heads, slots, head_dim), np.float32) for _ in range(layers)]
        return [NativeKV.of(*store.transpose(0, 2, 1, 3)) for store in stores]

    @staticmethod
    def _check_reach(rows: CRows, positions: int, slots: int) -> None:
        """ValueError if `rows` address more than the rotary tables or the key/value store hold."""
        if rows.positions > positions or rows.slots > slots:
            raise ValueError(
                f"rows reach position {rows.positions} of {positions} and key/value slot {rows.slots} of {slots}"
            )

    # ---- what lives from call to call ----

    def _scratch(self, size: int) -> Any:
        """At least `size` bytes of this thread's scratch; it grows and is reused."""
        held = getattr(self._local, "scratch", None)
        if held is None or held.nbytes < size:
            held = self._local.scratch = aligned(size)
        return pointer(held)

    @property
    def scratch_bytes(self) -> int:
        held = getattr(self._local, "scratch", None)
        return 0 if held is None else held.nbytes

    def _rows(self, rows: Rows) -> CRows:
        """`rows` for C; the last two are kept, since every layer of a pass asks for the same ones."""
        recent = self._local.__dict__.setdefault("rows", [])
        for known in recent:
            if known.rows is rows:
                return known
        recent.insert(0, CRows.of(rows))
        del recent[2:]
        return recent[0]

    def _layer(self, w: LayerWeights) -> CLayer:
        """`w` for C, made once and dropped with it."""
        key = id(w)
        if key not in self._layers:
            self._layers[key] = CLayer.of(w)
            weakref.finalize(w, self._layers.pop, key, None)
        return self._layers[key]
