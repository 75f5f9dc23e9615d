"""What `dllm bench` reports: counted operations, rotated weights, random models; wrong kernels are not timed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend

from dllm_core.bench import kernel as kernel_module
from dllm_core.bench import limits as limits_module
from dllm_core.bench.decode import bench_decode
from dllm_core.bench.kernel import bench_kernel, copies
from dllm_core.bench.limits import Limits, kind_of
from dllm_core.bench.models import open_engine, open_model
from dllm_core.bench.peak import bench_peak
from dllm_core.bench.random_folder import SHAPES, RandomFolder, cut_layers, random_matrix
from dllm_core.bench.samples import Measured
from dllm_core.bench.step import bench_step
from dllm_core.errors import DllmError, NotFoundError, UsageError
from dllm_core.models.dream import DreamConfig
from dllm_core.models.llada import LladaConfig
from dllm_core.testing.check import all_logits
from dllm_core.testing.random_model import save_random_checkpoint

# what every result of kernel, step and decode has
COMMON = {
    "backend", "isa", "threads", "scheme", "shape", "rows", "ms", "ms_min", "ms_p25", "ms_p75", "samples", "gops",
    "share_of_peak", "share_of_bandwidth", "peak", "bandwidth", "handover_ns",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch):
    """A few megabytes instead of four times the last cache."""
    monkeypatch.setattr(limits_module, "BUFFER", 4 << 20)
    for module in (limits_module, kernel_module):
        monkeypatch.setattr(module, "l3_bytes", lambda: 1 << 18)


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    return save_random_checkpoint(tmp_path_factory.mktemp("llada"), layers=2, width=32, heads=4, kv_heads=2, mlp=48)


def check_rates(result):
    json.dumps(result)
    assert set(result) >= COMMON
    assert 0 < result["ms_min"] <= result["ms_p25"] <= result["ms"] <= result["ms_p75"]
    assert result["peak"] is None or result["share_of_peak"] > 0


def test_limits_are_measured(registry):
    limits = Limits(2, "avx2")
    limits.sample("int8", "f32")
    limits.sample("int8")
    facts = limits.to_dict()
    assert facts["threads"] == 2
    assert facts["isa"] in ("avx2", "scalar")
    assert len(limits.rates["read"]) == 2
    assert limits.bandwidth == np.median(limits.rates["read"]) > 0
    for kind in limits.instructions:
        assert kind in ("bf16", "int4") or facts[f"{kind}_gops"] > 0


def test_peak_has_a_row_per_limit_and_thread_count():
    results = bench_peak([1, 2], None, repeats=2)
    assert {(r["what"], r["threads"]) for r in results} >= {("read", 1), ("read", 2)}
    for result in results:
        assert 0 < result["rate_min"] <= result["rate_p25"] <= result["rate"] <= result["rate_p75"]
        assert result["unit"] == {"read": "GB/s", "handover": "ns"}.get(result["what"], "GOP/s")
    (handover,) = (r for r in results if r["what"] == "handover")
    assert handover["threads"] == 2
    assert 1 < handover["rate"] < 1e8


@pytest.mark.parametrize("name", ["numpy", "cffi-simd"])
def test_kernel_results(name, registry):
    said: list[str] = []
    backend = registry.backend(name, 1)
    limits, results = bench_kernel(backend, [(48, 40), (30, 200)], [1, 3], backend.schemes, 2, say=said.append)
    assert [(r["scheme"], r["shape"], r["rows"]) for r in results] == [
        (scheme, shape, rows) for scheme in backend.schemes for shape in ("48x40", "30x200") for rows in (1, 3)
    ]
    assert len(said) == 2 * len(backend.schemes)
    for result in results:
        n, k = map(int, result["shape"].split("x"))
        check_rates(result)
        assert result["gops"] == pytest.approx(2 * result["rows"] * n * k / result["ms"] / 1e6)
        assert result["share_of_bandwidth"] > 0
        assert result["samples"] >= 4
    assert limits.threads == 1


@pytest.mark.parametrize("name", ["numpy", "cffi-simd"])
def test_cold_copies_are_equal_and_lie_apart(name, registry):
    backend = registry.backend(name, 1)
    x = np.random.default_rng(0).standard_normal((2, 100), np.float32)
    for scheme in backend.schemes:
        handles = copies(backend, scheme, 300, 100, warm=False)
        assert len(handles) * backend.linear_bytes(handles[0]) >= 4 << 18
        outputs = [backend.linear(x, handle) for handle in handles]
        assert all(np.array_equal(outputs[0], y) for y in outputs)
        first, second = (next(iter(backend.pack(handle).values())) for handle in handles[:2])
        assert not np.shares_memory(first, second)
        assert len(copies(backend, scheme, 300, 100, warm=True)) == 1


class Wrong(NumpyBackend):
    name = "wrong"

    def linear(self, x, w, out=None):
        y = super().linear(x, w, out)
        y[-1:] *= 1.01
        return y


def test_a_wrong_kernel_is_not_timed(llada, registry):
    with pytest.raises(DllmError, match=r"wrong.*not timed"):
        bench_kernel(Wrong(1), [(48, 40)], [2], ["f32"])
    model, source = open_model(str(llada), Wrong(1), "f32", registry)
    with pytest.raises(DllmError, match=r"wrong.*not timed"):
        bench_step(model, source, "x", 4, 2)


@pytest.mark.parametrize("name", ["numpy", "cffi-simd"])
def test_step_counts_the_products_that_are_done(name, llada, registry):
    """d 32, 4 heads and 2 kv heads of 8: qkv 64x32, out 32x32, gate_up 96x32, down 32x48, head 131x32. In the last
    layer, keys and values are wanted of all rows, queries and the rest of those that are kept."""
    model, source = open_model(str(llada), registry.backend(name, 1), "qd8-f32-qc8w", registry)
    rest = 32 * 32 + 96 * 32 + 32 * 48
    for rows, head, cached in ((6, 2, 0), (6, 6, 9), (5, 0, 1)):
        _, result = bench_step(model, source, "x", rows, head, cached, repeats=2)
        kept = head if head else rows
        products = rows * (64 * 32 + rest) + rows * 32 * 32 + kept * (32 * 32 + rest) + head * 131 * 32
        assert result["gops"] == pytest.approx(2 * products / result["ms"] / 1e6)
        assert (result["rows"], result["head_rows"], result["cached"]) == (rows, head, cached)
        assert len(result["layers"]) == 2
        assert result["at_most"] is None or result["share_of_peak"] < result["at_most"] < 1
        assert sum(result["split"].values()) >= 0.5 * result["ms"]
        assert {"gemm", "attention"} <= set(result["split"])
        assert result["peak_rss_bytes"] > result["weight_bytes"] > 0
        check_rates(result)
    assert "layers" not in vars(model.backend)  # nothing of the counting stays


def test_step_refuses_what_does_not_fit(llada, registry):
    model, source = open_model(str(llada), NumpyBackend(1), "f32", registry)
    for rows, head, cached in ((0, 0, 0), (4, 5, 0), (4, 2, -1), (500, 2, 13)):
        with pytest.raises(UsageError):
            bench_step(model, source, "x", rows, head, cached)


def test_decode_counts_the_same_products(llada, registry):
    """Without a cache every pass runs all rows, and the head those that are still masked."""
    engine, source = open_engine(str(llada), registry.backend("cffi-simd", 1), "qd8-f32-qc8w", registry)
    _, results = bench_decode(engine, source, ["reference", "fast"], max_tokens=8, repeats=2)
    assert [r["strategy"] for r in results] == ["reference", "fast"]
    for result in results:
        json.dumps(result)
        assert set(result) >= COMMON
        assert result["gops"] > 0
        assert result["answer_ms"] >= result["ms_min"]
    assert results[0]["forward_passes"] == 8
    assert results[0]["rows"] == 40  # 32 of the prompt, 8 of the canvas


@pytest.mark.parametrize(("name", "parameters"), [("llada-8b", 8.0e9), ("llada-1b", 1.49e9), ("dream-7b", 7.6e9)])
def test_random_shapes_have_the_published_sizes(name, parameters):
    config = RandomFolder(f"random:{name}").config
    if config["model_type"] == "llada":
        c = LladaConfig.parse(config)
        d, m, kv, layers, vocab = c.d_model, c.mlp_hidden_size, c.n_kv_heads * c.head_dim, c.n_layers, c.embedding_size
    else:
        c = DreamConfig.parse(config)
        d, m, kv = c.hidden_size, c.intermediate_size, c.num_key_value_heads * c.head_dim
        layers, vocab = c.num_hidden_layers, c.vocab_size
    assert layers * (2 * d * d + 2 * d * kv + 3 * d * m) + 2 * vocab * d == pytest.approx(parameters, rel=0.02)


def test_random_weights_are_spread_and_repeatable():
    values = random_matrix(200, 64).array()
    assert values.shape == (200, 64)
    assert values.std() == pytest.approx(64**-0.5, rel=0.02)
    assert abs(values.mean()) < 0.01
    assert len({row.tobytes() for row in values}) == 200
    np.testing.assert_array_equal(values, random_matrix(200, 64).array())
    folder = RandomFolder("random:llada-8b")
    big = folder.make("w", (126464, 4096))
    assert big.raw.base is not None
    assert big.raw.strides == (128, 2)  # windows on one block
    assert folder.make("norm", (7,)).array().tolist() == [1.0] * 7


def test_a_config_of_ones_own(llada, registry):
    for reference in (f"random:{llada}", f"random:{llada / 'config.json'}"):
        model, source = open_model(reference, NumpyBackend(1), "f32", registry, layers=1)
        assert model.facts.layers == 1
        assert source.shapes["layers.0.gate_up"] == (96, 32)
        assert np.isfinite(all_logits(model, np.arange(5))).all()
    with pytest.raises(NotFoundError, match="llada-9b") as caught:
        RandomFolder("random:llada-9b")
    assert all(name in caught.value.hint for name in SHAPES)


def test_layers_cut_off():
    assert cut_layers({"model_type": "Dream", "num_hidden_layers": 5}, 2)["num_hidden_layers"] == 2
    for config, layers in (({"model_type": "llada", "n_layers": 2}, 3), ({"model_type": "llada", "n_layers": 2}, 0)):
        with pytest.raises(UsageError, match="--layers"):
            cut_layers(config, layers)
    with pytest.raises(UsageError, match="bert"):
        cut_layers({"model_type": "bert"}, 1)


def test_statistics():
    """Shares are medians over rounds, each against the limits of its own round."""
    measured = Measured("int8")
    for limit, seconds in ((100.0, [1.0, 2.0, 3.0]), (200.0, [1.0]), (50.0, [8.0, 4.0, 6.0])):
        measured.add({"int8": limit * 1e9, "read": 10e9, "handover": 40e-9}, seconds)
    found = measured.report(100e9, 5e9)
    assert found == {
        "ms": pytest.approx(3e3), "ms_min": pytest.approx(1e3), "ms_p25": pytest.approx(1.5e3),
        "ms_p75": pytest.approx(5e3), "samples": 7, "gops": pytest.approx(100 / 3),
        "share_of_peak": pytest.approx(0.5), "share_of_bandwidth": pytest.approx(0.25), "peak": 100.0,
        "bandwidth": 10.0, "handover_ns": pytest.approx(40),
    }  # fmt: skip
    bare = Measured("f32")
    bare.add({}, [1.0])
    assert (bare.report(1, 1)["share_of_peak"], bare.report(0, 1)["gops"], bare.report(1, 1)["peak"]) == (None,) * 3
    assert [kind_of(s) for s in ("f32", "qd8-f32-qb4w", "bf16")] == ["f32", "int8", "bf16"]


def test_schemes_are_measured_by_what_multiplies_them():
    limits = Limits(1)
    limits.instructions = dict.fromkeys(("int8", "f32"), "")
    assert [limits.kind_of(s) for s in ("f32", "bf16", "qd8-f32-qb8w", "qd8-f32-qb4w")] == [
        "f32",
        "f32",
        "int8",
        "int8",
    ]
    limits.instructions = dict.fromkeys(("int8", "f32", "bf16", "int4"), "")
    assert [limits.kind_of(s) for s in ("f32", "bf16", "qd8-f32-qb8w", "qd8-f32-qb4w")] == [
        "f32",
        "bf16",
        "int8",
        "int4",
    ]
