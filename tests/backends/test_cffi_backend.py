"""cffi-simd: threads, scratch, forks and bad arguments. What it computes is the conformance suite's business."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
from dllm_cffi.backend import CffiBackend
from dllm_cffi.rows import supported_rows

from dllm_core import quant
from dllm_core.backend import KVLayer, LayerWeights, Rows
from dllm_core.errors import UnsupportedError
from dllm_core.tensors import Tensor, from_array

SCHEMES = CffiBackend.schemes
D, HEADS, KV_HEADS, HEAD_DIM, MLP, LENGTH = 96, 6, 2, 16, 160, 40


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def new_layer(backend: CffiBackend, scheme: str) -> LayerWeights:
    def linear(n: int, k: int, seed: int):
        return backend.prepare_linear([from_array(normal(n, k, seed=seed) / np.sqrt(k))], scheme)

    angle = np.outer(np.arange(LENGTH), 100.0 ** -np.linspace(0, 1, HEAD_DIM // 2))
    return LayerWeights(
        attn_norm=1 + normal(D, seed=1) / 10,
        qkv=linear((HEADS + 2 * KV_HEADS) * HEAD_DIM, D, 2),
        attn_out=linear(D, HEADS * HEAD_DIM, 3),
        mlp_norm=1 + normal(D, seed=4) / 10,
        gate_up=linear(2 * MLP, D, 5),
        down=linear(D, MLP, 6),
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        eps=1e-5,
        cos=np.cos(angle).astype(np.float32),
        sin=np.sin(angle).astype(np.float32),
    )


def two_sequences() -> Rows:
    offsets = np.array([0, 25, LENGTH])
    return Rows(np.r_[0:25, 0:15], np.arange(LENGTH), offsets, offsets)


@pytest.mark.parametrize("isa", supported_rows())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_results_do_not_depend_on_the_threads(scheme: str, isa: str) -> None:
    """Shapes with enough work for several threads, and more threads than cores."""
    x, w, results = normal(70, 513), normal(1003, 513, seed=1), []
    for threads in (1, 2, 5):
        backend = CffiBackend(threads, isa)
        handle = backend.prepare_linear([from_array(w)], scheme)
        results.append((backend.linear(x, handle), *backend.score(x, handle)))
    for other in results[1:]:
        for one, many in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_equals_its_operators(scheme: str) -> None:
    """The native layer against the composite that `Backend` writes with level 1 operators, bit for bit."""
    backend, rows = CffiBackend(2), two_sequences()
    w, x = new_layer(backend, scheme), normal(LENGTH, D, seed=7)
    fused, plain = (backend.allocate_kv(1, LENGTH, KV_HEADS, HEAD_DIM)[0] for _ in range(2))
    np.testing.assert_array_equal(
        backend.layer(x, w, fused, rows), backend.mlp(backend.attention_block(x, w, plain, rows), w)
    )
    np.testing.assert_array_equal(fused.k, plain.k)
    np.testing.assert_array_equal(fused.v, plain.v)


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if quant.get_scheme(s).quantised])
def test_weights_packed_in_pieces_keep_their_codes(scheme: str) -> None:
    """Several tensors, stored as bfloat16, whose seams lie inside the panels of every row."""
    how = quant.get_scheme(scheme)
    raw = [(normal(n, 200, seed=n).view(np.uint32) >> 16).astype(np.uint16) for n in (1, 33, 50, 1100)]
    tensors = [Tensor("part", r, "BF16") for r in raw]
    expected = quant.quantise_weight(np.concatenate([t.array() for t in tensors]), how)
    for isa in supported_rows():
        backend = CffiBackend(2, isa)
        codes, scales = backend.unpack_linear(backend.prepare_linear(tensors, scheme))
        np.testing.assert_array_equal(codes, expected.codes)
        np.testing.assert_array_equal(scales, expected.scales)


@pytest.mark.parametrize("isa", supported_rows())
def test_four_bit_codes_of_difficult_weights(isa: str) -> None:
    """Ties of rounding and of signs, faults, denormals, zeros of either sign, in whole and in short groups."""
    how = quant.get_scheme("qd8-f32-qb4w")
    rng = np.random.default_rng(0)
    halves = np.float32(-0.5) * rng.integers(-16, 17, (6, 300))
    halves[:, ::128] = 8.4
    halves[3:] *= -1
    halves[2:4, 1::128] = 8.4
    cases = [halves, normal(5, 300), normal(2, 300) * 2.0**100, normal(2, 300) * 2.0**-99, np.zeros((1, 300))]
    cases += [-np.zeros((1, 300)), np.full((1, 300), -3.5), np.full((1, 300), 1e-45), np.full((1, 300), 2.0**-100)]
    w = np.concatenate(cases).astype(np.float32)
    w[6, 140], w[7, 0], w[8, 299] = np.nan, np.inf, -np.inf
    w[9, 1::3] = -0.0
    expected = quant.quantise_weight(w, how)
    backend = CffiBackend(1, isa)
    codes, scales = backend.unpack_linear(backend.prepare_linear([from_array(w)], how.name))
    np.testing.assert_array_equal(codes, expected.codes)
    np.testing.assert_array_equal(scales, expected.scales)
    assert np.isnan(scales).sum() == 3
    assert not np.signbit(scales[scales == 0]).any()


@pytest.mark.parametrize("isa", supported_rows())
def test_bfloat16_weights_of_every_kind(isa: str) -> None:
    """Ties, denormals, zeros of either sign, values that round to infinity, infinities and NaN, bit for bit."""
    bits = np.random.default_rng(0).integers(0, 2**32, (33, 301), np.uint64).astype(np.uint32)
    bits[:8] = bits[:8] & 0xFFFF0000 | 0x8000  # halfway between two
    bits[8:12] &= 0x807FFFFF
    bits[12] |= 0x7F800000
    bits[13, :6] = [0, 0x80000000, 0x7F7FFFFF, 0xFF800000, 0x7F800001, 0xFFFFFFFF]
    w = bits.view(np.float32)
    backend = CffiBackend(1, isa)
    found, _ = backend.unpack_linear(backend.prepare_linear([from_array(w)], "bf16"))
    np.testing.assert_array_equal(found.view(np.uint32), quant.round_bf16(w).astype(np.uint32) << 16)


@pytest.mark.parametrize("isa", supported_rows())
def test_bfloat16_rounds_activations_once(isa: str) -> None:
    """One weight of 1 per row shows the rounded activation itself; after the norm, the rounded normed value."""
    backend = CffiBackend(1, isa)
    identity = backend.prepare_linear([from_array(np.eye(301, dtype=np.float32))], "bf16")
    x, gain = normal(5, 301), 1 + normal(301, seed=1) / 10

    def rounded(values: np.ndarray) -> np.ndarray:
        return (quant.round_bf16(values).astype(np.uint32) << 16).view(np.float32)

    np.testing.assert_array_equal(backend.linear(x, identity), rounded(x))
    normed = backend.rms_norm(x, gain, 1e-5)
    np.testing.assert_array_equal(backend.norm_linear(x, gain, 1e-5, identity), rounded(normed))


@pytest.mark.parametrize("in_one_call", [3, 2, 1])
@pytest.mark.parametrize("keep", [None, [0, 3, 4]])
def test_layers_equal_one_after_the_other(keep: list[int] | None, in_one_call: int, monkeypatch) -> None:
    backend, rows = CffiBackend(2), two_sequences()
    layers = [new_layer(backend, "qd8-f32-qb8w") for _ in range(3)]
    kept = None if keep is None else np.array(keep)
    products = sum(h.n * h.k for h in (layers[0].qkv, layers[0].attn_out, layers[0].gate_up, layers[0].down))
    monkeypatch.setattr("dllm_cffi.backend.PRODUCTS_PER_CALL", in_one_call * LENGTH * products)
    together, one_by_one = (backend.allocate_kv(3, LENGTH, KV_HEADS, HEAD_DIM) for _ in range(2))
    x = want = normal(LENGTH, D, seed=7)
    for i in range(3):
        want = backend.layer(want, layers[i], one_by_one[i], rows, kept if i == 2 else None)
    backend.clock.layers.clear()
    np.testing.assert_array_equal(backend.layers(x, layers, together, rows, kept), want)
    for found, expected in zip(together, one_by_one, strict=True):
        np.testing.assert_array_equal(found.k, expected.k)
        np.testing.assert_array_equal(found.v, expected.v)
    assert list(backend.clock.layers) == [0, 1, 2]
    assert min(backend.clock.layers.values()) > 0
    assert len(backend.layers(x, layers, together, rows, np.array([], np.int64))) == 0
    assert len(backend.layers(x, [], [], rows)) == LENGTH


def test_scratch_is_allocated_once() -> None:
    backend = CffiBackend(2)
    handle = backend.prepare_linear([from_array(normal(64, 256))], "qd8-f32-qb8w")
    backend.linear(normal(50, 256), handle)
    first = backend._local.scratch
    for rows in (50, 3, 49):
        backend.linear(normal(rows, 256), handle)
        assert backend._local.scratch is first


def test_a_layer_adds_its_seconds_to_the_clock() -> None:
    backend = CffiBackend(1)
    w, kv = new_layer(backend, "f32"), backend.allocate_kv(1, LENGTH, KV_HEADS, HEAD_DIM)[0]
    backend.layer(normal(LENGTH, D), w, kv, two_sequences())
    backend.score(normal(3, D), w.gate_up)
    assert set(backend.clock.seconds) == {"gemm", "attention", "head"}
    assert all(seconds > 0 for seconds in backend.clock.seconds.values())


def product(seed: int) -> bytes:
    backend = CffiBackend(2)
    handle = backend.prepare_linear([from_array(normal(600, 300, seed=seed))], "qd8-f32-qb8w")
    return backend.linear(normal(40, 300, seed=seed), handle).tobytes()


def test_threads_survive_a_fork() -> None:
    here = [product(seed) for seed in range(2)]  # the pool has threads now
    with multiprocessing.get_context("fork").Pool(2) as children:
        assert children.map_async(product, range(2)).get(timeout=60) == here


@pytest.mark.parametrize("where", ["position", "slot", "keys"])
def test_rows_beyond_the_memory_are_refused(where: str) -> None:
    backend, rows = CffiBackend(1), two_sequences()
    w, kv = new_layer(backend, "f32"), backend.allocate_kv(1, LENGTH, KV_HEADS, HEAD_DIM)[0]
    if where == "position":
        rows = replace(rows, positions=rows.positions + 16)
    elif where == "slot":
        rows = replace(rows, slots=rows.slots + 1)
    else:
        kv = KVLayer(kv.k[:-1], kv.v[:-1])
    with pytest.raises(ValueError, match="rows reach"):
        backend.layer(normal(LENGTH, D), w, kv, rows)


def test_wrong_arguments_are_refused() -> None:
    backend = CffiBackend(1)
    handle = backend.prepare_linear([from_array(normal(8, 16))], "f32")
    with pytest.raises(ValueError, match=r"\(2, 16\)"):
        backend.linear(normal(2, 15), handle)
    with pytest.raises(ValueError, match="out must have shape"):
        backend.linear(normal(2, 16), handle, out=np.empty((2, 7), np.float32))
    with pytest.raises(ValueError, match="out must be writeable C-contiguous float32"):
        backend.linear(normal(2, 16), handle, out=np.empty((2, 8), np.float64))
    with pytest.raises(UnsupportedError, match="unknown scheme 'int3'"):
        backend.prepare_linear([from_array(normal(8, 16))], "int3")
    wide = Tensor("wide", np.broadcast_to(np.float32(1), (1, 200_000)), "F32")
    with pytest.raises(UnsupportedError, match="200000 inputs"):
        backend.prepare_linear([wide], "qd8-f32-qc8w")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_inputs_than_the_kernels_take_are_refused_by_name(scheme):
    backend, most = CffiBackend(1), 1 << 17
    handle = backend.prepare_linear([from_array(np.ones((1, most), np.float32))], scheme)
    y = backend.linear(np.ones((1, most), np.float32), handle)
    np.testing.assert_allclose(y, most, rtol=0.05)  # int4 makes the extreme 5 % smaller
    with pytest.raises(UnsupportedError, match=f"wide: {most + 1} inputs"):
        backend.prepare_linear([from_array(np.ones((1, most + 1), np.float32), "wide")], scheme)
