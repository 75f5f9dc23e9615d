"""Forward passes against the authors' code: every row of every layer, padded batches included."""

from __future__ import annotations

import numpy as np
import pytest

from dllm_core.backend import Rows
from dllm_core.decoding.canvas import full_rows
from dllm_core.decoding.confidence import propose

ABSOLUTE = 1e-3
PROBABILITY = 1e-5


def allocate(model, slots):
    facts = model.facts
    return model.backend.allocate_kv(facts.layers, slots, facts.kv_heads, facts.head_dim)


def run_padded(model, ids, mask, positions=None):
    """Hidden states [L, d] of one row of a padded batch.

    Our batches hold no padding: the real tokens run alone, at their padded positions. LLaDA's authors also compute
    the pad rows, which see the real tokens' keys and are seen by nobody: that is a pass that writes nothing.
    """
    real, pads = np.flatnonzero(mask == 1), np.flatnonzero(mask == 0)
    positions = np.arange(len(ids)) if positions is None else positions.astype(np.int64)
    kv = allocate(model, len(real))
    slots = np.array([0, len(real)])
    hidden = np.empty((len(ids), model.facts.width), np.float32)
    rows = Rows(positions[real], np.arange(len(real)), q_offsets=slots, kv_offsets=slots)
    hidden[real] = model.hidden(ids[real], kv, rows)
    if len(pads):
        queries = Rows(positions[pads], slots=None, q_offsets=np.array([0, len(pads)]), kv_offsets=slots)
        hidden[pads] = model.hidden(ids[pads], kv, queries)
    return hidden


@pytest.mark.golden("forward")
def test_logits_of_every_row(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    ids = case.arrays["input_ids"].astype(np.int64)
    masks = case.arrays.get("attention_mask", np.ones_like(ids))
    positions = case.arrays.get("position_ids", [None] * len(ids))
    for b in range(len(ids)):
        hidden = run_padded(model, ids[b], masks[b], positions[b])
        logits = model.backend.linear(hidden, model.head)
        rows = masks[b] == 1 if model.facts.family == "dream" else slice(None)  # Dream's pads see nothing
        np.testing.assert_allclose(logits[rows], case.arrays["logits"][b][rows], rtol=0, atol=ABSOLUTE)


@pytest.mark.golden("forward")
def test_a_batch_laid_end_to_end_gives_each_sequence_its_own_logits(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    ids = case.arrays["input_ids"].astype(np.int64)
    real = case.arrays.get("attention_mask", np.ones_like(ids)) == 1
    lengths = real.sum(axis=1)
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    rows = full_rows(offsets)
    # rotary positions are relative: a left-padded row may start at 0
    hidden = model.hidden(ids[real], allocate(model, int(offsets[-1])), rows)
    logits = model.backend.linear(hidden, model.head)
    np.testing.assert_allclose(logits, case.arrays["logits"][real], rtol=0, atol=ABSOLUTE)


@pytest.mark.golden("forward")
def test_statistics_of_the_vocabulary(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    ids = case.arrays["input_ids"].astype(np.int64)[0]
    mask = case.arrays.get("attention_mask", np.ones((1, len(ids)), int))[0]
    real = mask == 1
    want = case.arrays["logits"][0][real].astype(np.float64)
    found = propose(model.backend, run_padded(model, ids, mask)[real], model.head)
    top = want.max(axis=1)
    assert np.all(want[np.arange(len(want)), found.token] >= top - 2 * ABSOLUTE)
    softmax = np.exp(want - top[:, None])
    softmax /= softmax.sum(axis=1, keepdims=True)
    second, first = np.sort(softmax, axis=1)[:, -2:].T
    np.testing.assert_allclose(found.probability, first, rtol=0, atol=PROBABILITY)
    np.testing.assert_allclose(found.margin, first - second, rtol=0, atol=2 * PROBABILITY)  # of two probabilities
    entropy = -(softmax * np.log(softmax)).sum(axis=1)
    np.testing.assert_allclose(found.entropy, entropy, rtol=0, atol=ABSOLUTE)


@pytest.mark.golden("forward", array="hidden")
def test_hidden_states_of_every_layer(golden_model, case, backend_name, monkeypatch):
    model = golden_model(case, backend_name)
    ids = case.arrays["input_ids"].astype(np.int64)
    inputs = []
    layers = model.backend.layers

    def recording(x, weights, kv, rows, keep=None):
        for w, store in zip(weights, kv, strict=True):
            inputs.append(x.copy())
            x = layers(x, [w], [store], rows, keep)
        return x

    monkeypatch.setattr(model.backend, "layers", recording)
    for b in range(len(ids)):
        inputs.clear()
        offsets = np.array([0, ids.shape[1]], np.int64)
        last = model.hidden(ids[b], allocate(model, ids.shape[1]), full_rows(offsets))
        np.testing.assert_allclose(np.stack([*inputs, last]), case.arrays["hidden"][:, b], rtol=0, atol=ABSOLUTE)


@pytest.mark.golden("forward_sampled")
def test_the_published_vocabulary(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    ids = case.arrays["input_ids"].astype(np.int64)[0]
    hidden = run_padded(model, ids, np.ones(len(ids), int))
    logits = model.backend.linear(hidden, model.head)
    want = {key: case.arrays[key][0] for key in ("logits_cols", "top_ids", "top_values", "logsumexp")}
    np.testing.assert_allclose(logits[:, case.arrays["cols"]], want["logits_cols"], rtol=0, atol=ABSOLUTE)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(order, want["top_ids"])
    np.testing.assert_allclose(np.take_along_axis(logits, order, 1), want["top_values"], rtol=0, atol=ABSOLUTE)
    scores = model.backend.score(hidden, model.head)
    np.testing.assert_array_equal(scores.ids, want["top_ids"][:, 0])
    np.testing.assert_allclose(scores.top, want["top_values"][:, 0], rtol=0, atol=ABSOLUTE)
    np.testing.assert_allclose(scores.second, want["top_values"][:, 1], rtol=0, atol=ABSOLUTE)
    np.testing.assert_allclose(scores.logsumexp, want["logsumexp"], rtol=0, atol=ABSOLUTE)
