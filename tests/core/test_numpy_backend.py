"""The reference against float64 and against results computed by hand: everything else is measured by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend

from dllm_core.backend import Rows, Scores, block_causal, causal, select_rows
from dllm_core.errors import UnsupportedError
from dllm_core.models.base import rope_tables
from dllm_core.tensors import Tensor, from_array

F = np.float32
OPS = NumpyBackend(1)
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


def test_rms_norm():
    x = np.array([[3, 4], [0, 0]], F)
    found = OPS.rms_norm(x, np.array([1, 2], F), 0.5)
    root = np.sqrt(12.5 + 0.5)
    np.testing.assert_allclose(found, [[3 / root, 8 / root], [0, 0]], rtol=1e-6)
    out = np.empty_like(x)
    assert OPS.rms_norm(x, np.array([1, 2], F), 0.5, out) is out
    np.testing.assert_array_equal(out, found)


def test_rope_rotates_halves_by_position():
    cos, sin = rope_tables(4, 100.0, 10)
    x = np.array([[1, 2, 3, 4]], F)
    OPS.rope(x, 1, cos, sin, np.array([3]))
    a, b = 3.0, 3.0 * 100**-0.5  # angles of the two pairs (1, 3) and (2, 4)
    want = [
        np.cos(a) - 3 * np.sin(a),
        2 * np.cos(b) - 4 * np.sin(b),
        3 * np.cos(a) + np.sin(a),
        4 * np.cos(b) + 2 * np.sin(b),
    ]
    np.testing.assert_allclose(x[0], want, rtol=1e-5)


def test_rope_at_position_zero_changes_nothing_and_keeps_lengths():
    cos, sin = rope_tables(8, 10000.0, 50)
    x = normal(2, 16)
    before = x.copy()
    OPS.rope(x, 2, cos, sin, np.array([0, 49]))
    np.testing.assert_array_equal(x[0], before[0])
    np.testing.assert_allclose(np.square(x[1]).sum(), np.square(before[1]).sum(), rtol=1e-5)


def plain_attention(q, k, v, segments):
    """Loops and float64."""
    r, heads, d = q.shape
    out = np.zeros((r, heads, d))
    for (qa, qb), (ka, kb) in segments:
        for i in range(qa, qb):
            for h in range(heads):
                g = h // (heads // k.shape[1])
                s = np.array([q[i, h].astype(float) @ k[j, g] for j in range(ka, kb)]) / d**0.5
                w = np.exp(s - s.max())
                out[i, h] = (w / w.sum()) @ v[ka:kb, g].astype(float)
    return out.reshape(r, heads * d)


def test_attention_over_ragged_segments_and_grouped_heads():
    q, k, v = normal(6, 4, 6), normal(9, 2, 6), normal(9, 2, 6)
    rows = Rows(np.arange(6), None, np.array([0, 2, 2, 6]), np.array([0, 3, 4, 9]))
    found = OPS.attention(q, k, v, rows)
    want = plain_attention(q, k, v, [((0, 2), (0, 3)), ((2, 6), (4, 9))])
    np.testing.assert_allclose(found, want, atol=2e-6)


def test_attention_survives_large_scores():
    q, k, v = normal(2, 1, 4) * 1e4, normal(3, 1, 4), normal(3, 1, 4)
    rows = Rows(np.arange(2), None, np.array([0, 2]), np.array([0, 3]))
    found = OPS.attention(q, k, v, rows)
    best = (q[:, 0] @ k[:, 0].T).argmax(axis=1)
    np.testing.assert_allclose(found, v[best, 0], atol=1e-5)


def test_swiglu():
    gate, up = [0.0, 1.0, -200.0, 90.0], [5.0, 2.0, 3.0, 2.0]
    found = OPS.swiglu(np.array([[*gate, *up]], F))
    want = [0, 1 / (1 + np.exp(-1)) * 2, 0, 180]
    np.testing.assert_allclose(found[0], want, rtol=1e-6, atol=1e-30)


def test_linear_with_several_weights_and_bias():
    w, b = [normal(3, 5), normal(2, 5)], [normal(3), normal(2)]
    x = normal(4, 5)
    handle = OPS.prepare_linear([from_array(a) for a in w], "f32", [from_array(a) for a in b])
    want = x @ np.concatenate(w).T + np.concatenate(b)
    np.testing.assert_allclose(OPS.linear(x, handle), want, atol=1e-5)
    weights, scales = OPS.unpack_linear(handle)
    np.testing.assert_array_equal(weights, np.concatenate(w))
    assert scales is None
    assert OPS.linear_bytes(handle) == (25 + 5) * 4


@pytest.mark.parametrize("scheme", ["qd8-f32-qc8w", "qd8-f32-qb8w"])
def test_a_quantised_linear_by_hand(scheme):
    # activations of scale 1, weights of scale 0.5
    x = np.array([[127, -3, 2]], F)
    w = np.array([[63.5, 1, 0], [0, 0, -63.5]], F)
    handle = OPS.prepare_linear([from_array(w)], scheme)
    codes, scale, acc = OPS.accumulators(x, handle)
    assert codes.tolist() == [[127, -3, 2]]
    assert scale.tolist() == [1]
    assert acc.tolist() == [[[127 * 127 - 3 * 2, -2 * 127]]]
    assert OPS.linear(x, handle).tolist() == [[(127 * 127 - 6) * 0.5, -127.0]]
    assert OPS.linear_bytes(handle) == 6 + 2 * 4


@pytest.mark.parametrize(("stored", "raw"), [("F16", np.float16), ("BF16", None)])
def test_weights_in_half_precision_are_widened_in_chunks(stored, raw):
    w = normal(350_000, 3)  # more values than one chunk
    narrow = w.astype(raw) if raw else (w.view(np.uint32) >> 16).astype(np.uint16)
    wide = narrow.astype(F) if raw else (narrow.astype(np.uint32) << 16).view(F)
    handle = OPS.prepare_linear([Tensor("w", narrow, stored)], "f32")
    np.testing.assert_array_equal(OPS.unpack_linear(handle)[0], wide)
    ids = np.array([349_999, 0, 0])
    np.testing.assert_array_equal(OPS.embed(Tensor("w", narrow, stored), ids), wide[ids])


def test_an_unknown_scheme_is_refused():
    with pytest.raises(UnsupportedError, match="q3"):
        OPS.prepare_linear([from_array(normal(2, 2))], "q3")


def test_statistics():
    logits = np.array([[0, np.log(3), -np.inf, 0], [2, 2, 1, 2]], F)
    found = OPS.statistics(logits)
    assert found.ids.tolist() == [1, 0]  # ties: the lowest id
    np.testing.assert_allclose(found.top, [np.log(3), 2], rtol=1e-6)
    np.testing.assert_allclose(found.second, [0, 2], rtol=1e-6)
    np.testing.assert_allclose(found.logsumexp, [np.log(5), np.log(3 * np.exp(2) + np.e)], rtol=1e-6)
    p = np.array([0.2, 0.6, 0.2])
    e = np.exp([2, 2, 1, 2]) / np.exp([2, 2, 1, 2]).sum()
    np.testing.assert_allclose(found.entropy, [-(p * np.log(p)).sum(), -(e * np.log(e)).sum()], rtol=1e-5)
    np.testing.assert_allclose(found.probability, [0.6, e[0]], rtol=1e-6)


def test_score_works_in_blocks_of_rows():
    h, w = normal(130, 8), normal(20, 8)
    handle = OPS.prepare_linear([from_array(w)], "f32")
    found, want = OPS.score(h, handle), OPS.statistics(h @ w.T)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert [len(part) for part in OPS.score(h[:0], handle)] == [0] * len(Scores._fields)


def test_choose_is_the_gumbel_argmax():
    logits, u = normal(50, 9), RNG.random((50, 9))
    scores = np.exp(logits.astype(np.float64)) / (-np.log(u)) ** 0.7  # the authors' form
    np.testing.assert_array_equal(OPS.choose(logits, u, 0.7), scores.argmax(axis=1))


def test_choose_follows_the_softmax():
    n = 20000
    logits = np.tile(np.log(np.array([[0.5, 0.3, 0.2]])), (n, 1)).astype(F)
    counts = np.bincount(OPS.choose(logits, RNG.random((n, 3)), 1.0), minlength=3) / n
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=0.02)


def test_select_rows():
    rows = Rows(np.array([0, 1, 2, 0, 1, 0]), np.arange(6), np.array([0, 3, 5, 6]), np.array([0, 3, 5, 6]))
    some = select_rows(rows, np.array([1, 2, 5]))
    assert some.positions.tolist() == [1, 2, 0]
    assert some.q_offsets.tolist() == [0, 2, 2, 3]
    assert some.kv_offsets.tolist() == [0, 3, 5, 6]
    assert some.slots is None


def test_masks_show_a_row_the_leading_slots_of_its_sequence():
    """Equal scores: the output is the mean of the values that a row sees."""
    rows = Rows(np.array([0, 1, 2, 4, 0]), None, np.array([0, 4, 5]), np.array([0, 5, 7]))
    values = np.array([1, 2, 4, 8, 16, 100, 300], np.float32).reshape(7, 1, 1)
    q, k = np.zeros((5, 1, 1), np.float32), np.ones((7, 1, 1), np.float32)

    def means(which):
        return NumpyBackend(1).attention(q, k, values, which).reshape(-1).tolist()

    assert means(rows) == pytest.approx([6.2, 6.2, 6.2, 6.2, 200])
    assert causal(rows).visible.tolist() == [1, 2, 3, 5, 1]
    assert means(causal(rows)) == pytest.approx([1, 1.5, 7 / 3, 6.2, 100])
    # blocks of three: positions 0-2 see each other, 3 and 4 (a shorter last block) see all; the second has two slots
    assert block_causal(rows, 3).visible.tolist() == [3, 3, 3, 5, 2]
    assert means(block_causal(rows, 3)) == pytest.approx([7 / 3, 7 / 3, 7 / 3, 6.2, 200])
    kept = select_rows(block_causal(rows, 3), np.array([1, 4]))
    assert kept.visible.tolist() == [3, 2]
    assert means(replace(rows, visible=np.array([0, 1, 0, 0, 0]))) == [0, 1, 0, 0, 0]
    for length in (0, -3):
        with pytest.raises(ValueError, match=f"block_length .* {length}"):
            block_causal(rows, length)
