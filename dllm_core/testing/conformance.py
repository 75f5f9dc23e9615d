"""The tests that every backend passes, also one from a plugin:

from dllm_core.testing.conformance import BackendConformance

class TestMine(BackendConformance):
    backend_name = "mine"
"""

from __future__ import annotations

import numpy as np
import pytest

from ..backend import Backend
from ..decoding.loop import decode
from ..decoding.options import DecodeOptions
from ..packing import Layout, Packed, aligned, packs
from ..plugins import load_registry
from ..quant import get_scheme
from ..tensors import from_array
from .case import Case, compare
from .cases import CASES
from .check import isa_variants
from .linear_case import LinearCase
from .random_model import random_model
from .steady import WORK, held, temporaries
from .watch import judge

# Of a scheme on normally distributed data, by the bits of its weights. Rounding to steps errs by a third of half a
# step squared: int8 steps are the range / 254, int4 steps (weights only) the extreme / 8.4, bfloat16 has 8 bits.
QUANTISATION_NMSE = {32: 1e-12, 16: 1e-5, 8: 1e-3, 4: 2e-2}


class BackendConformance:
    """Subclass it, set `backend_name` (or override `make`), and let pytest collect it."""

    backend_name = ""
    # Bytes that an operator with `out=` may allocate for itself once it is warm: small objects of Python, not arrays.
    # None: it may allocate what it likes, as the reference does.
    temporary_bytes: int | None = None

    @classmethod
    def make(cls, threads: int) -> Backend:
        """The backend under test."""
        return load_registry().backend(cls.backend_name, threads)

    @pytest.fixture(scope="class")
    @classmethod
    def variants(cls) -> list[Backend]:
        """One backend per instruction set that can run here, on two threads."""
        return isa_variants(cls.make(2))

    @pytest.fixture(scope="class")
    @classmethod
    def single(cls) -> list[Backend]:
        """The same on one thread."""
        return isa_variants(cls.make(1))

    def test_names_itself(self, variants: list[Backend]) -> None:
        rows = [backend.isa for backend in variants]
        assert len(set(rows)) == len(rows), f"two variants have the same isa: {rows}"
        for backend in variants:
            name, schemes = self.backend_name or backend.name, backend.schemes
            assert backend.name == name, f"registered as {name!r}, but the class says name = {backend.name!r}"
            assert backend.isa, "isa is empty"
            assert "f32" in schemes, f"schemes are {schemes}: f32 is missing, which every backend has"
            assert backend.default_scheme in schemes, f"default_scheme {backend.default_scheme} is none of {schemes}"

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_equals_the_reference(self, case: Case, variants: list[Backend]) -> None:
        """Integers bit for bit, floats within the bound that the case derives, canaries and inputs intact."""
        for backend in variants:
            if case.scheme in backend.schemes:
                found = judge(case, backend)
                assert not found.problems, f"{backend.isa}: {found.problems} ({case.reason})"

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_does_not_depend_on_the_thread_count(
        self, case: Case, variants: list[Backend], single: list[Backend]
    ) -> None:
        for two, one in zip(variants, single, strict=True):
            if case.scheme in two.schemes:
                many, few = case.run(two), case.run(one)
                for key, array in {**many.exact, **many.close}.items():
                    other = {**few.exact, **few.close}[key]
                    np.testing.assert_array_equal(array, other, err_msg=f"{two.isa}: {key}")

    def test_quantisation_costs_what_it_should(self, variants: list[Backend]) -> None:
        """Against float64 without quantisation: the kernel's error is checked above, this is the scheme's."""
        for backend in variants:
            for scheme in backend.schemes:
                case = LinearCase(33, 300, (65,), scheme)
                nmse = compare(case, case.run(backend)).nmse
                assert nmse < QUANTISATION_NMSE[get_scheme(scheme).bits]

    def test_keep_gives_the_rows_of_the_full_result(self, variants: list[Backend]) -> None:
        for backend in variants:
            for scheme in backend.schemes:
                model = random_model(backend, scheme, layers=1)
                ids = np.random.default_rng(0).integers(0, model.facts.vocab_size, 45)
                keep = np.array([0, 3, 11, 12, 30, 44])
                whole, kept = _hidden(model, ids, None), _hidden(model, ids, keep)
                slack = (1e-5 if scheme == "f32" else 2e-2) * np.abs(whole).max()
                np.testing.assert_allclose(kept, whole[keep], rtol=0, atol=slack)
                assert len(_hidden(model, ids, np.array([], np.int64))) == 0

    def test_packed_arrays_make_the_same_weight(self, variants: list[Backend]) -> None:
        """What goes into a packed model file: the arrays are what the layout says, and are used where they lie."""
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((5, 301), np.float32), rng.standard_normal((70, 301), np.float32)
        parts = [from_array(w[:50]), from_array(w[50:])]
        for backend in variants:
            for scheme in backend.schemes if packs(backend) else ():  # a backend may do without packed models
                handle = backend.prepare_linear(parts, scheme)
                layout = backend.layout(scheme)
                assert Layout.parse(str(layout)) == layout
                arrays = {}
                for name, (dtype, shape) in layout.arrays(70, 301, False).items():
                    arrays[name] = aligned(shape, dtype)
                    arrays[name][...] = backend.pack(handle)[name].reshape(-1).view(dtype).reshape(shape)
                    arrays[name].flags.writeable = False
                again = backend.unpack_file(arrays, Packed(layout, 70, 301))
                np.testing.assert_array_equal(backend.linear(x, again), backend.linear(x, handle))
                values = layout.read(arrays, 70, 301)
                codes, scales = backend.unpack_linear(handle)
                np.testing.assert_array_equal(values["weights" if scales is None else "codes"], codes)
                if scales is not None:
                    np.testing.assert_array_equal(values["scales"], scales)

    def test_keeps_no_more_memory_from_pass_to_pass(self, variants: list[Backend]) -> None:
        """After the first passes nothing grows: neither arrays and objects, nor scratch, nor the process."""
        for backend in variants:
            for scheme in backend.schemes:
                grown = held(backend, scheme)
                assert grown.scratch == 0, f"{backend.isa} {scheme}: scratch grew by {grown.scratch} bytes"
                assert grown.traced < grown.least / 4, f"{backend.isa} {scheme}: {grown.traced} bytes of Python remain"
                assert grown.resident < grown.least / 2, f"{backend.isa} {scheme}: the process grew by {grown.resident}"

    @pytest.mark.parametrize("op", WORK)
    def test_allocates_nothing_in_the_steady_state(self, op: str, variants: list[Backend]) -> None:
        """For backends that say so with `temporary_bytes`."""
        limit = float("inf") if self.temporary_bytes is None else self.temporary_bytes
        for backend in variants:
            for scheme in backend.schemes:
                most = temporaries(backend, scheme, op)
                assert most <= limit, f"{backend.isa} {scheme}: {op} allocates {most} bytes"

    def test_decodes_the_reference_tokens(self, variants: list[Backend]) -> None:
        """Every canvas of a tiny random model in float32, token for token; two prompts of unequal length."""
        from dllm_numpy.backend import NumpyBackend

        for settings in ({}, {"temperature": 0.8}, {"cfg_scale": 1.0}, {"remasking": "random"}):
            options = DecodeOptions(max_tokens=12, steps=8, block_length=6, seed=3, **settings)
            want = _trace(random_model(NumpyBackend(1)), options)
            for backend in variants:
                assert _trace(random_model(backend), options) == want, f"{backend.isa} with {settings}"


def _hidden(model, ids, keep):
    from ..decoding.canvas import full_rows

    facts = model.facts
    offsets = np.array([0, 20, len(ids)], np.int64)
    kv = model.backend.allocate_kv(facts.layers, len(ids), facts.kv_heads, facts.head_dim)
    return model.hidden(ids, kv, full_rows(offsets), keep)


def _trace(model, options) -> list[list[list[int]]]:
    prompts = [[5, 17, 101], [9, 44, 8, 77, 21, 3, 60]]
    return [[canvas.tolist() for canvas in step.canvas] for step in decode(model, prompts, options)]
