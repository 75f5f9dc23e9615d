"""Quantisation schemes against vectors computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dllm_core import quant
from dllm_core.errors import UnsupportedError

F = np.float32


def rows(*values):
    return np.array(values, F)


def test_codes_and_scale_of_a_row():
    # amax 254: scale 2, codes are halves
    codes, scale = quant.quantise_rows(rows([254, -254, 2, -4, 0]))
    assert codes.tolist() == [[127, -127, 1, -2, 0]]
    assert codes.dtype == np.int8
    assert scale.tolist() == [2.0]
    assert scale.dtype == F


def test_rounding_is_half_to_even():
    # amax 127: the inverse scale is exactly 1
    codes, _ = quant.quantise_rows(rows([127, 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5]))
    assert codes.tolist() == [[127, 0, 2, 2, 4, 0, -2, -2]]


def test_scale_is_float32_division():
    _, scale = quant.quantise_rows(rows([1.0]))
    assert scale[0] == F(1) / F(127)
    codes, _ = quant.quantise_rows(rows([1.0, 0.1]))
    assert codes[0, 1] == np.rint(F(0.1) * (F(127) / F(1))) == 13


def test_every_row_has_its_own_scale():
    codes, scale = quant.quantise_rows(rows([127, 1], [1.27, 0.01]))
    assert codes.tolist() == [[127, 1], [127, 1]]
    np.testing.assert_allclose(scale, [1, 0.01], rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 2.0**-100 * 0.999, -(2.0**-101)])
def test_a_tiny_row_is_zero(value):
    codes, scale = quant.quantise_rows(rows([value, 0]))
    assert codes.tolist() == [[0, 0]]
    assert scale.tolist() == [0.0]


def test_the_smallest_row_that_is_not_zero():
    codes, scale = quant.quantise_rows(rows([2.0**-100, -(2.0**-101)]))
    assert codes.tolist() == [[127, -64]]  # -63.5 rounds to even
    assert scale[0] == F(2.0**-100) / F(127) > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_faulty_row_is_seen_and_spoils_no_other(bad):
    codes, scale = quant.quantise_rows(rows([1, bad, 3], [127, 5, 0]))
    assert codes.tolist() == [[0, 0, 0], [127, 5, 0]]
    assert np.isnan(scale[0])
    assert scale[1] == 1


def test_the_largest_float_does_not_overflow():
    big = np.finfo(F).max
    codes, scale = quant.quantise_rows(rows([big, -big, big / 2]))
    assert codes.tolist() == [[127, -127, 64]]
    assert np.isfinite(scale[0])


def test_no_inputs_and_no_rows():
    codes, scale = quant.quantise_rows(np.zeros((2, 0), F))
    assert codes.shape == (2, 0)
    assert scale.tolist() == [0, 0]
    codes, scale = quant.quantise_rows(np.zeros((0, 4), F))
    assert codes.shape == (0, 4)
    assert scale.shape == (0,)


@given(hnp.arrays(F, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.floats(-1e6, 1e6, width=32)))
@settings(max_examples=200, deadline=None)
def test_codes_are_within_half_a_step(x):
    codes, scale = quant.quantise_rows(x)
    assert np.abs(codes.astype(int)).max(initial=0) <= 127
    error = np.abs(codes * scale[:, None].astype(np.float64) - x)
    assert np.all(error <= scale[:, None] * 0.5001 + 2.0**-100)


def test_groups_along_k():
    assert quant.get_scheme("qd8-f32-qc8w").groups(300) == [(0, 300)]
    assert quant.get_scheme("qd8-f32-qb8w").groups(300) == [(0, 128), (128, 256), (256, 300)]
    assert quant.get_scheme("qd8-f32-qb8w").groups(128) == [(0, 128)]
    assert quant.get_scheme("qd8-f32-qb8w").groups(129) == [(0, 128), (128, 129)]
    assert quant.get_scheme("qd8-f32-qb8w").groups(1) == [(0, 1)]


def test_an_unknown_scheme_lists_the_choices():
    with pytest.raises(UnsupportedError) as error:
        quant.get_scheme("int4")
    assert "int4" in error.value.message
    assert "qd8-f32-qc8w" in error.value.hint


def test_weights_per_channel():
    w = quant.quantise_weight(rows([127, -1, 2], [0, 0, 0], [0.5, 0.25, -0.5]), quant.get_scheme("qd8-f32-qc8w"))
    assert w.codes.tolist() == [[127, -1, 2], [0, 0, 0], [127, 64, -127]]  # 63.5 rounds to even
    assert w.scales[:, 0].tolist() == [1.0, 0.0, F(0.5) / F(127)]


def test_weights_per_group_and_the_last_one_short():
    w = np.zeros((1, 130), F)
    w[0, 0], w[0, 127], w[0, 128], w[0, 129] = 127, 1, 1, -0.5
    q = quant.quantise_weight(w, quant.get_scheme("qd8-f32-qb8w"))
    assert q.scales.tolist() == [[1.0, F(1) / F(127)]]
    assert (q.codes[0, 0], q.codes[0, 127], q.codes[0, 128], q.codes[0, 129]) == (127, 1, 127, -64)


def test_four_bit_codes_and_scale_of_a_row():
    # the extreme is 8.4 steps of -1, and gets the code -8; the others are multiples of that step, 7 at most
    codes, scale = quant.quantise_rows_4bit(rows([8.4, 1, -3, -8, 0.4], [-8.4, 1, -3, 8.4, 0], [-4.2, 1, 3.9, 0, 0]))
    assert scale.tolist() == [-1, -1, 0.5]  # on a tie of both signs the positive one is the extreme
    assert codes.tolist() == [[-8, -1, 3, 7, 0], [7, -1, 3, -8, 0], [-8, 2, 7, 0, 0]]
    assert codes.dtype == np.int8
    assert scale.dtype == F


def test_four_bit_rounding_is_half_to_even():
    codes, _ = quant.quantise_rows_4bit(rows([-8.4, 0.5, 1.5, 2.5, -0.5, -1.5]))
    assert codes.tolist() == [[-8, 0, 2, 2, 0, -2]]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 2.0**-100 * 0.999, -(2.0**-101)])
def test_a_tiny_four_bit_row_is_zero(value):
    codes, scale = quant.quantise_rows_4bit(rows([value, 0]))
    assert codes.tolist() == [[0, 0]]
    assert scale.tolist() == [0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_faulty_four_bit_row_is_seen_and_spoils_no_other(bad):
    codes, scale = quant.quantise_rows_4bit(rows([1, bad, 3], [-8.4, 5, 0]))
    assert codes.tolist() == [[0, 0, 0], [-8, 5, 0]]
    assert np.isnan(scale[0])
    assert scale[1] == 1


def test_four_bit_weights_err_no_more_than_with_a_zero_point():
    """Why the scheme has none: on normal data its error is that of the best affine codes, within two per cent."""
    w = np.random.default_rng(0).standard_normal((2000, 128)).astype(F)
    q = quant.quantise_weight(w, quant.get_scheme("qd8-f32-qb4w"))
    assert q.codes.min() == -8
    assert q.codes.max() == 7
    low, high = w.min(1, keepdims=True), w.max(1, keepdims=True)
    step = (high - low) / 15
    zero = np.rint(-low / step)
    affine = (np.clip(np.rint(w / step) + zero, 0, 15) - zero) * step
    error, other = (float(np.sqrt(np.mean((v - w) ** 2))) for v in (q.codes * q.scales, affine))
    assert error < 1.02 * other


def test_bfloat16_rounds_half_to_even_and_keeps_what_is_no_number():
    bits = quant.round_bf16(np.array([1, 1.00390625, 1.01171875, -1.004, 3.4e38, np.inf, -np.inf, 1e-45], F))
    # 1 + 2^-8 lies halfway between 1 and 1 + 2^-7, 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6
    assert [hex(b) for b in bits] == ["0x3f80", "0x3f80", "0x3f82", "0xbf81", "0x7f80", "0x7f80", "0xff80", "0x0"]
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(F)
    assert all(b & 0x7F80 == 0x7F80 and b & 0x7F for b in quant.round_bf16(nan).tolist())


def test_accumulators_per_group():
    w = np.zeros((2, 130), F)
    w[0], w[1, 129] = 127, 127
    q = quant.quantise_weight(w, quant.get_scheme("qd8-f32-qb8w"))
    x = np.full((1, 130), -2, np.int8)
    acc = quant.accumulate(x, q)
    assert acc.dtype == np.int32
    assert acc.tolist() == [[[-2 * 127 * 128, 0]], [[-2 * 127 * 2, -2 * 127]]]


@pytest.mark.parametrize("k", [1040, 1041, 12288])
def test_accumulators_are_exact_at_the_extremes(k):
    scheme = quant.get_scheme("qd8-f32-qc8w")
    x = np.full((1, k), 127, np.int8)
    x[0, -1] = 126  # an odd sum: float32 would round it beyond 2^24
    q = quant.QuantisedWeight(np.full((1, k), -127, np.int8), np.ones((1, 1), F), scheme)
    assert quant.accumulate(x, q).tolist() == [[[-127 * 127 * (k - 1) - 127 * 126]]]


def test_rescale():
    scheme = quant.get_scheme("qd8-f32-qb8w")
    q = quant.QuantisedWeight(np.zeros((2, 256), np.int8), rows([0.5, 2], [0.25, 0]), scheme)
    acc = np.array([[[10, 20]], [[-3, 7]]], np.int32)
    assert quant.rescale(acc, rows(0.5), q).tolist() == [[(10 * 0.5 - 3 * 2) * 0.5, 20 * 0.25 * 0.5]]
    assert np.isnan(quant.rescale(acc, rows(np.nan), q)).all()
