"""numpy arrays as the C structs and pointers of dllm.h, with the checks that C relies on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dllm_core import packing
from dllm_core.backend import F32, KVLayer, LayerWeights, Rows, Scores

from ._native import ffi, lib


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """`size` uninitialised bytes at a multiple of 64; large ones start where a huge page can.

    numpy asks for huge pages itself (from 4 MiB on); they make up to a fifth of the speed where memory is the limit.
    """
    return packing.aligned((size,), np.uint8)


def pointer(array: npt.NDArray[Any], ctype: str = "void *") -> Any:
    """The memory of a C-contiguous array, which lives as long as the pointer does."""
    return ffi.from_buffer(ctype, array)  # a fifth of the time that array.ctypes takes, more when caches are cold


def floats(array: npt.NDArray[Any]) -> Any:
    return ffi.from_buffer("float *", array)


def longs(array: npt.NDArray[Any]) -> Any:
    return ffi.from_buffer("int64_t *", array)


def checked(array: npt.NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """`array` as C-contiguous `dtype`; ValueError unless it has this shape."""
    if array.shape != shape:
        raise ValueError(f"expected an array of shape {shape}, got {array.shape}")
    return np.ascontiguousarray(array, dtype)


def in_place(array: npt.NDArray[Any], name: str) -> F32:
    """`array` itself; ValueError unless C can write to it where it lies."""
    if array.dtype != np.float32 or not array.flags.carray:
        raise ValueError(
            f"{name} must be writeable C-contiguous float32, got {array.dtype} with strides {array.strides}"
        )
    return array


def kv_store(kv: KVLayer, heads: int, head_dim: int) -> Any:
    """Keys and values [slots, G, D] for C, in any order of slots and heads; ValueError unless C can write to both."""
    for name, store in (("k", kv.k), ("v", kv.v)):
        if store.dtype != np.float32 or not store.flags.writeable or store.shape[1:] != (heads, head_dim):
            raise ValueError(f"{name} must be writeable float32 [slots, {heads}, {head_dim}], got {store.shape}")
        if store.size and (store.strides != kv.k.strides or store.strides[2] != 4):
            raise ValueError(f"k and v must have equal strides and whole heads, got {kv.k.strides} and {store.strides}")
    k, v = (ffi.cast("float *", store.ctypes.data) for store in (kv.k, kv.v))  # not in one piece
    return ffi.new("dllm_kv *", [k, v, kv.k.strides[0] // 4, kv.k.strides[1] // 4])


class NativeKV(KVLayer):
    """Keys and values with their C struct, made once: every layer of every pass asks for it."""

    store: Any

    @classmethod
    def of(cls, k: F32, v: F32) -> NativeKV:
        found = cls(k, v)
        found.store = kv_store(found, *k.shape[1:])
        return found


def output(out: F32 | None, shape: tuple[int, ...]) -> F32:
    """`out` if it can hold `shape`, or a new array, whose rows do not straddle cache lines: 2 % of a product's time."""
    if out is None:
        return packing.aligned(shape, np.float32)
    if out.size != math.prod(shape):
        raise ValueError(f"out must have shape {shape}, got {out.shape}")
    return in_place(out, "out")


def call(status: int) -> None:
    """Turns the status of a C function into an exception."""
    if status == lib.DLLM_NO_MEMORY:
        raise MemoryError("the native kernels could not allocate memory")
    if status != lib.DLLM_OK:
        raise ValueError(f"the native kernels refused their arguments (status {status})")


def new_scores(rows: int) -> tuple[Scores, Any]:
    """Empty vocabulary statistics and the C struct that points into them."""
    ids, columns = np.empty(rows, np.int64), np.empty((4, rows), np.float32)
    struct = ffi.new("dllm_scores *", [longs(ids), *(floats(column) for column in columns)])
    return Scores(ids, *columns), struct


@dataclass(frozen=True)
class CRows:
    """A `Rows` for C, with the bounds of what it addresses."""

    rows: Rows
    struct: Any
    arrays: tuple[npt.NDArray[np.int64], ...]
    positions: int  # all positions are below this
    slots: int  # all slots, read or written, are below this

    @classmethod
    def of(cls, rows: Rows) -> CRows:
        count, sequences = len(rows), len(rows.q_offsets) - 1
        positions = checked(rows.positions, np.int64, (count,))
        q_offsets = checked(rows.q_offsets, np.int64, (sequences + 1,))
        kv_offsets = checked(rows.kv_offsets, np.int64, (sequences + 1,))
        slots = positions[:0] if rows.slots is None else checked(rows.slots, np.int64, (count,))
        for offsets in (q_offsets, kv_offsets):
            if offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise ValueError(f"sequence offsets must ascend from 0, got {offsets.tolist()}")
        if q_offsets[-1] != count:
            raise ValueError(f"sequences cover {q_offsets[-1]} rows of {count}")
        if min(positions.min(initial=0), slots.min(initial=0)) < 0:
            raise ValueError("positions and slots must not be negative")
        struct = ffi.new("dllm_rows *", {"rows": count, "sequences": sequences})
        struct.positions, struct.q_offsets, struct.kv_offsets = longs(positions), longs(q_offsets), longs(kv_offsets)
        struct.slots = ffi.NULL if rows.slots is None else longs(slots)
        visible = positions[:0] if rows.visible is None else checked(rows.visible, np.int64, (count,))
        if visible.size and (visible.min() < 0 or (visible > np.repeat(np.diff(kv_offsets), np.diff(q_offsets))).any()):
            raise ValueError("a row cannot see more slots than its sequence has, or fewer than none")
        struct.visible = ffi.NULL if rows.visible is None else longs(visible)
        last_slot = max(kv_offsets[-1], slots.max(initial=-1) + 1)
        arrays = (positions, slots, visible, q_offsets, kv_offsets)
        return cls(rows, struct, arrays, int(positions.max(initial=-1)) + 1, int(last_slot))


@dataclass(frozen=True)
class CLayer:
    """A `LayerWeights` for C."""

    struct: Any
    arrays: tuple[F32, ...]
    positions: int  # length of the rotary tables
    products: int  # a row

    @classmethod
    def of(cls, w: LayerWeights) -> CLayer:
        struct = ffi.new("dllm_layer *")
        width, half = w.qkv.k, (len(w.cos), w.head_dim // 2)
        shapes = {"attn_norm": (width,), "mlp_norm": (width,), "cos": half, "sin": half}
        arrays = {name: checked(getattr(w, name), np.float32, shape) for name, shape in shapes.items()}
        for name, array in arrays.items():
            setattr(struct, name, floats(array))
        for name in ("qkv", "attn_out", "gate_up", "down"):
            setattr(struct, name, getattr(w, name).struct)
        products = sum(linear.n * linear.k for linear in (w.qkv, w.attn_out, w.gate_up, w.down))
        for name in ("heads", "kv_heads", "head_dim", "eps"):
            setattr(struct, name, getattr(w, name))
        return cls(struct, tuple(arrays.values()), len(w.cos), products)
