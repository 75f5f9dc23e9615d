"""Packed layouts: where every number of a weight lies, written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dllm_core.errors import UnsupportedError
from dllm_core.packing import Layout, rearrange


def test_layouts_are_written_as_they_are_read():
    layout = Layout("mine", 3, "sve", "qd8-f32-qb8w", 16, 4, 128)
    assert str(layout) == "mine/3/sve/qd8-f32-qb8w/16x4+128"
    assert Layout.parse(str(layout)) == layout
    rows = {"codes": np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "scales": np.ones((3, 1), np.float32)}
    packed = Layout("mine", 1, "any", "qd8-f32-qc8w", 2, 2, 128).write(rows, 3, 4)
    # panel 0: outputs 0 and 1, inputs 0-1 then 2-3; panel 1: output 2 and nothing
    stored = [122, 123, 126, 127, 124, 125, 128, 129, 130, 131, 128, 128, 132, 133, 128, 128]
    assert packed["codes"].reshape(-1).tolist() == stored
    assert packed["scales"].reshape(-1).tolist() == [1, 1, 1, 0]


def test_four_bit_codes_share_bytes():
    layout = Layout("mine", 1, "any", "qd8-f32-qb4w", 2, 4, 8)
    assert Layout.parse(str(layout)) == layout
    rows = {"codes": np.array([[-8, -7, -6, -5, 1], [7, 6, 5, 4, -1]], np.int8), "scales": np.ones((2, 1), np.float32)}
    packed = layout.write(rows, 2, 5)["codes"]
    # input i is the lower half of byte i, input i + 2 the upper one; code + 8; 8 stands for no input
    assert packed.shape == (1, 2, 2, 2)
    assert packed.reshape(-1).tolist() == [0x20, 0x31, 0xDF, 0xCE, 0x89, 0x88, 0x87, 0x88]
    np.testing.assert_array_equal(layout.read({"codes": packed}, 2, 5)["codes"], rows["codes"])


def test_bfloat16_weights_are_stored_as_such():
    layout = Layout("mine", 1, "any", "bf16", 1, 2)
    packed = layout.write({"weights": np.array([[1, -2, 3.0]], np.float32)}, 1, 3)["weights"]
    assert packed.dtype == np.uint16
    assert packed.reshape(-1).tolist() == [0x3F80, 0xC000, 0x4040, 0]
    assert layout.read({"weights": packed}, 1, 3)["weights"].tolist() == [[1, -2, 3]]


@pytest.mark.parametrize(
    "text", ["x/1/any/qd8-f32-qb4w/1x2+0", "x/1/any/qd8-f32-qb4w/1x3+8", "x/1/any/qd8-f32-qc8w/1x2+8"]
)
def test_layouts_that_make_no_sense_are_refused(text):
    with pytest.raises(UnsupportedError, match="unknown layout"):
        Layout.parse(text)


def test_large_weights_are_rearranged_in_pieces():
    """More outputs than a piece, and numbers of columns that have no common divisor."""
    n, k = 2500, 70
    rng = np.random.default_rng(0)
    rows = {"codes": rng.integers(-127, 128, (n, k)).astype(np.int8), "scales": rng.random((n, 1), np.float32)}
    rows["bias"] = rng.random(n, np.float32)
    first, second = (Layout("x", 1, "any", "qd8-f32-qc8w", *panel) for panel in ((48, 4, 128), (7, 0, 0)))
    moved = rearrange(first.write(rows, n, k), first, second, n, k)
    assert all(moved[name].shape == shape for name, (_, shape) in second.arrays(n, k, True).items())
    for name, array in second.read(moved, n, k).items():
        np.testing.assert_array_equal(array, rows[name])
