"""Whole quantised models: the reference's logits and tokens, whatever the kernel and the thread count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dllm_numba.backend import NumbaBackend
from dllm_numba.kernel import usable_kernels
from dllm_numpy.backend import NumpyBackend

from dllm_core.checkpoint import open_folder
from dllm_core.decoding.canvas import full_rows
from dllm_core.decoding.loop import decode
from dllm_core.decoding.options import DecodeOptions
from dllm_core.models import build_model
from dllm_core.plugins import load_registry

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = ("llada_mha", "llada_gqa_odd", "llada_sharp")
QUANTISED = ("qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w")
# Projections are equal bit for bit, but BLAS may sum attention in another order when its thread count changes, and
# one rounding in a hidden state can tip an activation into the next code: a step of 1/127 of its row's largest value.
TOLERANCE = 0.02


def logits(name: str, backend, scheme: str) -> np.ndarray:
    folder = open_folder(GOLDEN / name)
    model = build_model(folder.config, folder, backend, scheme, load_registry())
    ids = np.random.default_rng(3).integers(0, model.facts.vocab_size, 40)
    facts = model.facts
    kv = backend.allocate_kv(facts.layers, 40, facts.kv_heads, facts.head_dim)
    return backend.linear(model.hidden(ids, kv, full_rows(np.array([0, 17, 40]))), model.head)


@pytest.mark.parametrize("isa", usable_kernels())
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("name", MODELS)
def test_forward_pass_equals_the_reference(name, scheme, isa):
    want = logits(name, NumpyBackend(1), scheme)
    for threads in (1, 2):
        found = logits(name, NumbaBackend(threads, isa), scheme)
        assert np.abs(found - want).max() <= TOLERANCE * np.abs(want).max()
        assert np.mean(found.argmax(1) == want.argmax(1)) >= 0.9


@pytest.mark.parametrize("name", MODELS)
def test_what_is_not_quantised_is_the_references(name):
    for scheme, atol in (("f32", 1e-4), ("bf16", 0.05)):  # a sum in another order may tip a rounding to bfloat16
        found, want = logits(name, NumbaBackend(2), scheme), logits(name, NumpyBackend(1), scheme)
        np.testing.assert_allclose(found, want, rtol=0, atol=atol)


@pytest.mark.parametrize("isa", usable_kernels())
def test_int8_stays_near_float32(isa):
    """The cost of quantising everything, on a model whose logits have standard deviation 3."""
    exact = logits("llada_mha", NumpyBackend(1), "f32")
    found = logits("llada_mha", NumbaBackend(2, isa), "qd8-f32-qb8w")
    assert np.square(found - exact).mean() < 0.01 * np.square(exact).mean()


@pytest.mark.parametrize("isa", usable_kernels())
def test_decoding_gives_the_references_tokens(isa):
    folder = open_folder(GOLDEN / "llada_sharp")
    options = DecodeOptions(max_tokens=16, steps=8, block_length=8, seed=1)
    canvases = []
    for backend in (NumpyBackend(1), NumbaBackend(2, isa)):
        model = build_model(folder.config, folder, backend, "qd8-f32-qb8w", load_registry())
        steps = decode(model, [[5, 17, 9], [3, 8, 21, 2, 40]], options)
        canvases.append([[canvas.tolist() for canvas in step.canvas] for step in steps])
    assert canvases[0] == canvases[1]
    assert len(canvases[0]) > 1
