"""A kernel broken on purpose must show red: every way of being wrong that kernels know, one by one."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend, NumpyLinear

from dllm_core import quant
from dllm_core.backend import Rows
from dllm_core.checkpoint import open_folder
from dllm_core.errors import BackendUnavailable, NotFoundError
from dllm_core.plugins import BackendEntry, Registry
from dllm_core.testing import random_checkpoint, run_checks, save_random_checkpoint
from dllm_core.testing.conformance import BackendConformance

Q = "qd8-f32-qc8w"


def registry_of(cls):
    registry = Registry()
    registry.backends["broken"] = BackendEntry("broken", cls, 0, "", "test")
    return registry


@cache
def failed(cls):
    """Names of the failed rows, without the number of cases."""
    rows = run_checks(registry_of(cls))
    return {row.case.split(" (")[0]: row for row in rows if not row.ok}


class Fine(NumpyBackend):
    name = "broken"


class HalfUp(Fine):
    """Activations rounded half away from zero and not half to even."""

    def accumulators(self, x, w):
        codes, scale, _ = super().accumulators(x, w)
        with np.errstate(invalid="ignore", divide="ignore"):
            exact = np.nan_to_num(x * np.where(scale > 0, np.float32(1) / scale, 0)[:, None])
        codes = np.where(np.isfinite(scale)[:, None], np.trunc(exact + np.copysign(0.5, exact)), 0).clip(-127, 127)
        return codes.astype(np.int8), scale, quant.accumulate(codes.astype(np.int8), w.weight)


class Float32Sums(Fine):
    """Integers are added up in float32."""

    def accumulators(self, x, w):
        codes, scale, exact = super().accumulators(x, w)
        if len(exact) > 1:
            return codes, scale, exact
        return codes, scale, (codes.astype(np.float32) @ w.weight.codes.astype(np.float32).T)[None].astype(np.int32)


class ShortK(Fine):
    """The last input is left out when K is odd."""

    def linear(self, x, w, out=None):
        if x.shape[1] % 2:
            x = x.copy()
            x[:, -1] = 0
        return super().linear(x, w, out)


class LowPrecision(Fine):
    """float32 linear with weights rounded to bfloat16."""

    def linear(self, x, w, out=None):
        if isinstance(w.weight, np.ndarray):
            coarse = (w.weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
            w = NumpyLinear(coarse, w.bias)
        return super().linear(x, w, out)


class WrongGroup(Fine):
    """The last group uses the scale of the one before."""

    def linear(self, x, w, out=None):
        if isinstance(w.weight, quant.QuantisedWeight) and w.weight.scales.shape[1] > 1:
            scales = w.weight.scales.copy()
            scales[:, -1] = scales[:, -2]
            w = NumpyLinear(replace(w.weight, scales=scales), w.bias)
        return super().linear(x, w, out)


class BadPacking(Fine):
    """One code of the weights is off by one."""

    def prepare_linear(self, weights, scheme, biases=None):
        handle = super().prepare_linear(weights, scheme, biases)
        if scheme == Q:
            handle.weight.codes[-1, -1] ^= 1
        return handle


class Overrun(Fine):
    """Writes one value behind the output."""

    def rms_norm(self, x, weight, eps, out=None):
        y = super().rms_norm(x, weight, eps, out)
        if out is not None and out.size:
            base = out.base
            start = (out.ctypes.data - base.ctypes.data) // 4
            base[start + out.size] = 0
        return y


class HidesNan(Fine):
    """NaN becomes zero on its way through a quantised projection."""

    def linear(self, x, w, out=None):
        y = np.nan_to_num(super().linear(x, w), nan=0.0)
        if out is None:
            return y
        out[...] = y
        return out


class Interleaved(Fine):
    """Rotary pairs are neighbours and not halves."""

    def rope(self, x, heads, cos, sin, positions):
        view = x.reshape(len(x), heads, -1) if x.size else x.reshape(0, heads, x.shape[1] // heads)
        a, b = view[..., 0::2].copy(), view[..., 1::2].copy()
        c, s = cos[positions][:, None, :], sin[positions][:, None, :]
        view[..., 0::2], view[..., 1::2] = a * c - b * s, b * c + a * s


class Causal(Fine):
    """A row does not see the keys behind it."""

    def attention(self, q, k, v, rows, out=None):
        y = super().attention(q, k, v, rows, out)
        for s in range(len(rows.q_offsets) - 1):
            for i in range(rows.q_offsets[s], rows.q_offsets[s + 1]):
                a, b = rows.kv_offsets[s], rows.kv_offsets[s] + rows.positions[i] + 1
                one = Rows(rows.positions[i : i + 1], None, np.array([0, 1]), np.array([0, b - a]))
                y[i] = super().attention(q[i : i + 1], k[a:b], v[a:b], one)[0]
        return y


class TiledHeads(Fine):
    """Query head h uses key head h modulo G and not h divided by their ratio."""

    def attention(self, q, k, v, rows, out=None):
        shared = q.shape[1] // k.shape[1]
        return super().attention(q, np.tile(k, (1, shared, 1)), np.tile(v, (1, shared, 1)), rows, out)


class LastTie(Fine):
    """The highest id wins a tie."""

    def statistics(self, logits):
        found = super().statistics(logits)
        return found._replace(ids=logits.shape[1] - 1 - logits[:, ::-1].argmax(axis=1))


class Forgets(Fine):
    """Keys and values of a cached pass land one slot too early."""

    def attention_block(self, x, w, kv, rows, keep=None):
        if rows.slots is not None and len(rows) < rows.kv_offsets[-1]:
            rows = replace(rows, slots=np.maximum(rows.slots - 1, 0))
        return super().attention_block(x, w, kv, rows, keep)


class ScalesInPlace(Fine):
    """The queries are scaled where they lie."""

    def attention(self, q, k, v, rows, out=None):
        y = super().attention(q, k, v, rows, out)
        q *= np.float32(q.shape[2] ** -0.5)
        return y


class Explodes(Fine):
    def swiglu(self, gate_up, out=None):
        raise IndexError("out of range")


class Float64(Fine):
    """Returns another type."""

    def embed(self, table, ids):
        return super().embed(table, ids).astype(np.float64)


class NoStart(Fine):
    def __init__(self, threads):
        raise OSError("no such library")


EXPECTED = [
    (HalfUp, {f"linear {Q}", "linear qd8-f32-qb8w"}),
    (Float32Sums, {f"linear {Q}"}),
    (ShortK, {"linear f32", f"linear {Q}", "linear qd8-f32-qb8w"}),
    (LowPrecision, {"linear f32", "layer f32", "score f32", "forward f32"}),
    (WrongGroup, {"linear qd8-f32-qb8w", "layer qd8-f32-qb8w"}),
    (BadPacking, {f"linear {Q}"}),
    (Overrun, {"rms_norm"}),
    (HidesNan, {f"linear {Q}", "linear qd8-f32-qb8w"}),
    (Interleaved, {"rope", "layer f32", "forward f32"}),
    (Causal, {"attention", "layer f32", "forward f32"}),
    (TiledHeads, {"attention", "layer f32", "forward f32"}),
    (LastTie, {"statistics"}),
    (Forgets, {"layer f32", f"layer {Q}"}),
    (ScalesInPlace, {"attention"}),
    (Explodes, {"swiglu", "layer f32", "forward f32"}),
    (Float64, {"embed"}),
    (NoStart, {"start"}),
]


@pytest.mark.parametrize(("cls", "expected"), EXPECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_kernel_is_named(cls, expected):
    rows = failed(cls)
    assert expected <= set(rows)
    assert all(row.detail and row.backend == "broken" for row in rows.values())


def test_a_sound_subclass_passes():
    rows = run_checks(registry_of(Fine))
    assert [row.case for row in rows if not row.ok] == []
    assert {row.case for row in rows if row.exact} >= {"embed (6 cases)", "forward f32"}


def test_only_what_is_broken_is_named():
    assert set(failed(BadPacking)) == {f"linear {Q}"}
    assert set(failed(LastTie)) == {"statistics", *(f"score {scheme}" for scheme in quant.SCHEMES)}
    assert set(failed(Overrun)) == {"rms_norm"}


def test_the_detail_names_the_case_and_the_value():
    detail = failed(BadPacking)[f"linear {Q}"].detail
    assert "weight codes differ at 1 of" in detail
    assert "linear[rows=" in detail
    assert "more cases" in detail


def test_the_kernel_error_is_told_from_the_cost_of_the_scheme():
    rows = {row.case.split(" (")[0]: row for row in run_checks(registry_of(Fine))}
    assert rows[f"linear {Q}"].max_error == 0
    assert 1e-6 < rows[f"linear {Q}"].nmse < 1e-2
    assert rows["linear f32"].nmse < 1e-10


class Absent(Fine):
    def __init__(self, threads):
        raise BackendUnavailable("needs another CPU")


def test_what_cannot_run_here_is_left_out_unless_it_is_named():
    registry = registry_of(Absent)
    assert run_checks(registry) == []
    with pytest.raises(BackendUnavailable, match="another CPU"):
        run_checks(registry, backends=["broken"])


def test_the_forward_pass_takes_a_model_folder(tmp_path):
    folder = save_random_checkpoint(tmp_path / "model", seed=4, layers=1, vocab=97)
    rows = run_checks(registry_of(Fine), str(folder))
    forward = next(row for row in rows if row.case == "forward f32")
    assert forward.ok
    again = next(row for row in run_checks(registry_of(Fine)) if row.case == "forward f32")
    assert forward.tolerance != again.tolerance  # another model, other logits
    rows = run_checks(registry_of(Causal), str(folder))
    assert not next(row for row in rows if row.case == "forward f32").ok
    with pytest.raises(NotFoundError, match="no-such-model"):
        run_checks(registry_of(Fine), str(tmp_path / "no-such-model"))


def test_a_random_checkpoint_on_disk_is_the_one_in_memory(tmp_path):
    folder = open_folder(save_random_checkpoint(tmp_path, seed=1))
    config, tensors = random_checkpoint(seed=1)
    assert folder.config == config
    assert sorted(folder.names()) == sorted(tensors.names())
    for name in tensors.names():
        np.testing.assert_array_equal(folder.tensor(name).array(), tensors.tensor(name).array())
    other = random_checkpoint(seed=2)[1]
    name = "model.transformer.wte.weight"
    assert not np.array_equal(other.tensor(name).array(), tensors.tensor(name).array())


class KeepsResults(Fine):
    """Holds on to what it has returned."""

    def __init__(self, threads=1):
        super().__init__(threads)
        self.kept = []

    def swiglu(self, gate_up, out=None):
        self.kept.append(super().swiglu(gate_up).copy())
        return super().swiglu(gate_up, out)


class LosesMemory(Fine):
    """Asks the C library for memory at every call, uses it and never frees it."""

    def linear(self, x, w, out=None):
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        ctypes.memset(libc.malloc(ctypes.c_size_t(x.nbytes)), 1, x.nbytes)
        return super().linear(x, w, out)


class GrowsScratch(Fine):
    """Makes its scratch larger at every call."""

    size = 0

    def rms_norm(self, x, weight, eps, out=None):
        self.size += x.nbytes
        return super().rms_norm(x, weight, eps, out)

    @property
    def scratch_bytes(self):
        return self.size


GROWS = [(KeepsResults, "of Python remain"), (GrowsScratch, "scratch grew")]
if sys.platform == "linux":  # elsewhere the size of the process is not read
    GROWS.append((LosesMemory, "the process grew"))


@pytest.mark.parametrize(("cls", "message"), GROWS)
def test_memory_that_grows_is_seen(cls, message):
    with pytest.raises(AssertionError, match=message):
        BackendConformance().test_keeps_no_more_memory_from_pass_to_pass([cls(1)])


def test_a_promise_to_allocate_nothing_is_kept_or_seen():
    class Promises(BackendConformance):
        temporary_bytes = 8192

    with pytest.raises(AssertionError, match="swiglu allocates"):  # the reference has temporary arrays
        Promises().test_allocates_nothing_in_the_steady_state("swiglu", [Fine(1)])
    BackendConformance().test_allocates_nothing_in_the_steady_state("swiglu", [Fine(1)])
