"""The compiled kernels against integer arithmetic done by numpy in int64, and against the reference bit for bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from dllm_numba.backend import NumbaBackend
from dllm_numba.kernel import find_kernel, usable_kernels
from dllm_numba.quantise import quantise, quantise_rows
from dllm_numba.team import Team
from dllm_numpy.backend import NumpyBackend

from dllm_core import quant
from dllm_core.packing import Packed
from dllm_core.tensors import Tensor, from_array

ISAS = usable_kernels()
QUANTISED = ("qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w")
# Below, at and above a step (4 or 8), a cache line (64) and a group (128), and with a last group that is shorter.
INPUTS = (1, 3, 4, 5, 7, 8, 9, 63, 64, 127, 128, 129, 192, 256, 300, 1000)
OUTPUTS = (1, 3, 4, 5, 31, 32, 33, 64, 100)
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def exact(codes: np.ndarray, weights: np.ndarray, group: int) -> np.ndarray:
    """int32 [G, R, N], summed in int64."""
    k = codes.shape[1]
    x, w = codes.astype(np.int64), weights.astype(np.int64)
    parts = [x[:, a : a + group] @ w[:, a : a + group].T for a in range(0, k, group)]
    return np.stack(parts).astype(np.int32)


def check(isa: str, scheme: str, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> None:
    """Codes, scales, accumulators and the float result of one projection, all bit for bit."""
    backend, reference = NumbaBackend(2, isa), NumpyBackend(1)
    biases = None if bias is None else [from_array(bias)]
    handle = backend.prepare_linear([from_array(w)], scheme, biases)
    how = quant.get_scheme(scheme)
    want = quant.quantise_weight(w, how)
    codes, scales = backend.unpack_linear(handle)
    np.testing.assert_array_equal(codes, want.codes, strict=True)
    np.testing.assert_array_equal(scales, want.scales, strict=True)
    x_codes, x_scales = quant.quantise_rows(x)
    found = backend.accumulators(x, handle)
    np.testing.assert_array_equal(found[0], x_codes, strict=True)
    np.testing.assert_array_equal(found[1], x_scales, strict=True)
    np.testing.assert_array_equal(found[2], exact(x_codes, codes, how.group or w.shape[1]), strict=True)
    y = backend.linear(x, handle)
    expected = reference.linear(x, reference.prepare_linear([from_array(w)], scheme, biases))
    # No tolerance: a product of group sum and scale is rounded, then added, in the order of the groups, as in
    # `dllm_core.quant.rescale`; nothing is fused or reordered.
    np.testing.assert_array_equal(y, expected, strict=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("k", INPUTS)
def test_inputs_around_the_blocks(isa, scheme, k):
    for rows, n in ((1, 33), (9, 5), (6, 64)):
        check(isa, scheme, normal(1, rows, k), normal(2, n, k), normal(3, n))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("n", OUTPUTS)
def test_outputs_around_the_panels(isa, scheme, n):
    for rows in (1, 10):
        check(isa, scheme, normal(1, rows, 200), normal(2, n, 200), normal(3, n))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_around_the_tiles(isa, scheme, rows):
    check(isa, scheme, normal(1, rows, 132), normal(2, 40, 132))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
def test_extreme_codes(isa, scheme):
    """Every product has the largest magnitude, with either sign: kernels that saturate or sum in 16 bits fail here."""
    k, sign = 3000, np.where(np.arange(3000) % 3 == 0, -1, 1)
    x = np.stack([np.full(k, 5.0), np.full(k, -5.0), 5.0 * sign]).astype(np.float32)
    w = np.stack([np.full(k, 0.1), np.full(k, -0.1), 0.1 * sign] * 12).astype(np.float32)
    check(isa, scheme, x, w)
    backend, how = NumbaBackend(1, isa), quant.get_scheme(scheme)
    acc = backend.accumulators(x, backend.prepare_linear([from_array(w)], scheme))[2]
    largest = 127 * 127 if how.bits == 8 else 127 * -8  # four bits: what is largest gets -8, its sign is the scale's
    assert acc[0, 0, 0] == largest * (how.group or k)
    assert acc[0, 1, 0] == -largest * (how.group or k)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
def test_rows_and_outputs_that_are_zero_faulty_or_tiny(isa, scheme):
    x, w = normal(1, 8, 150), normal(2, 37, 150)
    x[0], x[1], x[2, 149], x[3, 7] = 0, 1e-41, np.nan, -np.inf
    x[4], x[5, 1:] = 2.0**-101, 0
    w[0], w[1], w[36] = 0, 1e-41, 1e30
    check(isa, scheme, x, w)
    backend = NumbaBackend(1, isa)
    y = backend.linear(x, backend.prepare_linear([from_array(w)], scheme))
    assert np.isnan(y[2:4]).all()
    assert not y[[0, 1, 4]].any()
    assert np.isfinite(y[[0, 1, 4, 5, 6, 7]]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
def test_weights_whose_extremes_tie_and_whose_halves_round_to_even(isa, scheme):
    w = normal(1, 40, 130)
    w[:, 128] = np.abs(w).max(axis=1) + 1
    w[::2, 3], w[1::2, 129] = -w[::2, 128], -w[1::2, 128]  # the largest magnitude with both signs, in either order
    w[7] = np.linspace(-8.4, 8.4, 130, dtype=np.float32)
    w[8, :20] = np.arange(-10, 10) / 2  # halves of a step: 8.4 makes the scale of four bits 1
    w[8, 20:128], w[8, 120] = 0, 127 if scheme == "qd8-f32-qb8w" else -8.4
    check(isa, scheme, normal(2, 3, 130), w)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
def test_what_lies_behind_the_inputs_in_memory_does_not_matter(isa, scheme):
    """A file that another program has packed may hold anything there."""
    n, k = 40, 131
    backend = NumbaBackend(1, isa)
    w, x = backend.prepare_linear([from_array(normal(1, n, k))], scheme), normal(2, 5, k)
    arrays, layout = backend.pack(w), backend.layout(scheme)
    rows = {name: layout.read(arrays, n, k)[name] for name in ("codes", "scales")}
    rng = np.random.default_rng(3)
    full = np.prod(layout.arrays(n, k, False)["codes"][1][1:]) * 8 // layout.how.bits // layout.columns
    padded = rng.integers(-8, 8, (n, full)).astype(np.int8)
    padded[:, :k] = rows["codes"]
    arrays = {"codes": layout.write({**rows, "codes": padded}, n, full)["codes"], "scales": arrays["scales"]}
    assert full > k
    assert not np.array_equal(arrays["codes"], backend.pack(w)["codes"])
    again = backend.unpack_file(arrays, Packed(layout, n, k))
    np.testing.assert_array_equal(backend.linear(x, again), backend.linear(x, w))


@pytest.mark.parametrize("isa", ISAS)
def test_a_faulty_weight_shows_in_its_own_output_alone(isa):
    w = normal(2, 6, 20)
    w[3, 11] = np.nan
    backend = NumbaBackend(1, isa)
    y = backend.linear(normal(1, 2, 20), backend.prepare_linear([from_array(w)], "qd8-f32-qb8w"))
    np.testing.assert_array_equal(np.isnan(y), np.arange(6)[None, :].repeat(2, 0) == 3)


def test_halves_round_to_even():
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 126.5]], np.float32)
    q = quantise(x, 8, 128, Team(1))
    np.testing.assert_array_equal(q.codes[0, :8], [127, 0, 2, 2, 0, -2, -126, 126])
    assert q.scale[0] == 1


@pytest.mark.parametrize("group", [1, 4, 100, 128, 300])
def test_offsets_are_the_sums_of_the_codes(group):
    x = normal(4, 9, 300)
    q = quantise(x, group, 8, Team(1))
    codes = quant.quantise_rows(x)[0].astype(np.int64)
    want = [-8 * codes[:, a : a + group].sum(axis=1) for a in range(0, 300, group)]
    np.testing.assert_array_equal(q.offsets[:, :9], want)


def test_quantisation_does_not_depend_on_the_thread_count():
    x = normal(5, 301, 1000)  # enough work for every thread
    x[17, 3], x[200] = np.nan, 0
    one, two = quantise(x, 128, 128, Team(1)), quantise(x, 128, 128, Team(2))
    for q in (one, two):
        codes, scales = quant.quantise_rows(x)
        np.testing.assert_array_equal(q.codes[:301, :1000], codes)
        np.testing.assert_array_equal(q.scale, scales)
    np.testing.assert_array_equal(one.offsets[:, :301], two.offsets[:, :301])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 50])
def test_the_result_does_not_depend_on_how_panels_are_shared_out(isa, scheme, parts):
    kernel, backend = find_kernel(isa), NumbaBackend(1, isa)
    w = backend.prepare_linear([from_array(normal(1, 150, 160))], scheme)
    x = normal(2, 21, 160)
    want = backend.linear(x, w)
    q = quantise(x, w.group, w.layout.zero, Team(1))
    y = np.full((21, 150), np.nan, np.float32)
    bounds = [i * len(w.panels) // parts for i in range(parts + 1)]
    for claims in reversed(list(pairwise(bounds))):
        arguments = (w.scheme.bits, q.codes, q.offsets, q.scale, w.panels, w.scales, w.bias, w.group, y)
        kernel.linear(np.array(claims), *arguments)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
def test_threads_give_the_same_result(isa, scheme):
    w, x = from_array(normal(1, 1000, 700)), normal(2, 200, 700)  # far beyond what one thread does alone
    results = []
    for threads in (1, 2, 3):
        backend = NumbaBackend(threads, isa)
        results.append(backend.linear(x, backend.prepare_linear([w], scheme)))
    reference = NumpyBackend(1)
    want = reference.linear(x, reference.prepare_linear([w], scheme))
    for y in results:
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", QUANTISED)
def test_several_weights_make_one_projection(isa, scheme):
    backend, reference = NumbaBackend(1, isa), NumpyBackend(1)
    sizes = (50, 3, 8100)  # more rows than one chunk of a stored tensor
    bits = [normal(i, n, 130).view(np.uint32) >> 16 for i, n in enumerate(sizes)]
    weights = [Tensor(f"w{i}", b.astype(np.uint16), "BF16") for i, b in enumerate(bits)]
    biases = [from_array(normal(9 + i, n)) for i, n in enumerate(sizes)]
    a, b = backend.prepare_linear(weights, scheme, biases), reference.prepare_linear(weights, scheme, biases)
    for mine, theirs in zip(backend.unpack_linear(a), reference.unpack_linear(b), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    x = normal(7, 3, 130)
    np.testing.assert_array_equal(backend.linear(x, a), reference.linear(x, b))


@pytest.mark.parametrize("isa", ISAS)
def test_panels_start_at_a_cache_line_and_their_bytes_are_counted(isa):
    backend = NumbaBackend(1, isa)
    w = backend.prepare_linear([from_array(normal(1, 96, 256))], "qd8-f32-qb8w")
    assert w.panels.ctypes.data % 64 == 0
    assert backend.linear_bytes(w) == 96 * 256 + 96 * 2 * 4 + 96 * 4
    w = backend.prepare_linear([from_array(normal(1, 96, 256))], "qd8-f32-qb4w")
    assert backend.linear_bytes(w) == 96 * 128 + 96 * 2 * 4 + 96 * 4


@pytest.mark.parametrize("isa", ISAS)
def test_weights_from_a_file_and_read_only_rows_need_no_kernel_of_their_own(isa):
    backend = NumbaBackend(1, isa)
    w, x = backend.prepare_linear([from_array(normal(1, 40, 30))], "qd8-f32-qb8w"), normal(2, 3, 30)
    backend.linear(x, w)
    before = list(backend.kernel.linear.signatures), list(quantise_rows.signatures)
    arrays = {name: array.copy() for name, array in backend.pack(w).items()}
    for writeable in (True, False):
        for array in (x, *arrays.values()):
            array.flags.writeable = writeable
        backend.linear(x, backend.unpack_file(arrays, Packed(backend.layout("qd8-f32-qb8w"), 40, 30)))
    assert (backend.kernel.linear.signatures, quantise_rows.signatures) == before


@pytest.mark.parametrize("isa", ISAS)
def test_outputs_of_every_layout_are_filled(isa):
    backend = NumbaBackend(1, isa)
    w = backend.prepare_linear([from_array(normal(1, 33, 40))], "qd8-f32-qc8w")
    x = normal(2, 6, 40)
    want = backend.linear(x, w)
    plain, strided = np.empty((6, 33), np.float32), np.full((6, 70), 7, np.float32)
    assert backend.linear(x, w, plain) is plain
    view = strided[:, 1:67:2]
    assert backend.linear(x, w, view) is view
    np.testing.assert_array_equal(plain, want)
    np.testing.assert_array_equal(view, want)
    assert (strided[:, 2:67:2] == 7).all()
    np.testing.assert_array_equal(backend.linear(np.asfortranarray(x), w), want)
    readonly = x.copy()
    readonly.flags.writeable = False
    np.testing.assert_array_equal(backend.linear(readonly, w), want)
    assert backend.linear(x[:0], w).shape == (0, 33)


def test_a_wrong_number_of_inputs_is_refused():
    backend = NumbaBackend(1)
    w = backend.prepare_linear([from_array(normal(1, 8, 40))], "qd8-f32-qc8w")
    for shape in ((3, 39), (3, 41), (40,)):
        with pytest.raises(ValueError, match="40"):
            backend.linear(np.zeros(shape, np.float32), w)
        with pytest.raises(ValueError, match="40"):
            backend.accumulators(np.zeros(shape, np.float32), w)
