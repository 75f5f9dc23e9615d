"""`footprint`, counted by hand."""

import numpy as np
from dllm_numpy.backend import NumpyBackend

from dllm_core.memory import footprint
from dllm_core.testing.check import all_logits
from dllm_core.testing.random_model import random_model


def test_bytes_by_what_they_are_for(registry):
    """d 32, 4 heads and 1 kv head of 8, mlp 50, vocabulary 131, 2 layers."""
    sizes = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 1, "mlp": 50, "vocab": 131}
    outputs = 2 * (48 + 32 + 100 + 32) + 131
    products = 2 * (48 * 32 + 32 * 32 + 100 * 32 + 32 * 50) + 131 * 32
    found = footprint(random_model(NumpyBackend(1), "f32", **sizes), 10)
    assert found == {
        "weights": 4 * products,
        "embedding": 4 * 131 * 32,
        "keys and values": 2 * 4 * 2 * 10 * 8,
        "scratch": 0,
    }
    int8 = footprint(random_model(NumpyBackend(1), "qd8-f32-qc8w", **sizes), 10)
    assert int8["weights"] == products + 4 * outputs
    native = random_model(registry.backend("cffi-simd", 1), "qd8-f32-qc8w", **sizes)
    before = footprint(native, 10)["scratch"]
    all_logits(native, np.arange(20))
    assert before == 0 < footprint(native, 10)["scratch"]
