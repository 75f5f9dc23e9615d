"""Registration, choice of the kernel, threads and the cache on disk. What is fixed at start-up runs in a process of
its own, with a cache directory of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import dllm_numba
import numpy as np
import pytest
from dllm_numba import kernel as kernels
from dllm_numba.backend import NumbaBackend
from dllm_numba.team import Team

from dllm_core.errors import BackendUnavailable, UnsupportedError, UsageError
from dllm_core.plugins import load_registry
from dllm_core.tensors import from_array

ISAS = kernels.usable_kernels()

# Runs one small projection and tells which kernel ran it.
PROGRAM = """
import json, sys
import numpy as np
from dllm_core.plugins import load_registry
from dllm_core.tensors import from_array

backend = load_registry().backend("numba-int8", 1)
w = backend.prepare_linear([from_array(np.arange(-60, 60).reshape(3, 40))], "qd8-f32-qb8w")
y = backend.linear(np.ones((2, 40), np.float32), w)
report = {"isa": backend.isa, "y": y.tolist(), "compiled": [], "hits": 0, "misses": 0, "vpdpbusd": False}
for name in ("gemm_portable", "gemm_avx512vnni"):
    linear = sys.modules["dllm_numba." + name].linear
    if linear.signatures:
        report["compiled"].append(name)
        report["vpdpbusd"] |= any("vpdpbusd" in text for text in linear.inspect_asm().values())
        report["hits"] += sum(linear.stats.cache_hits.values())
        report["misses"] += sum(linear.stats.cache_misses.values())
modules = [module for name, module in sys.modules.items() if name.startswith("dllm_numba.")]
functions = [f for module in modules for f in vars(module).values() if hasattr(f, "stats")]
report["anew"] = sorted({f.__name__ for f in functions if sum(f.stats.cache_misses.values())})
print(json.dumps(report))
"""
EXPECTED = [[sum(range(-60 + 40 * i, -20 + 40 * i)) for i in range(3)]] * 2


def python(program: str, cache: object, **variables: str) -> str:
    """Standard output of a new interpreter."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "DLLM_"))}
    environment = {**kept, "NUMBA_CACHE_DIR": str(cache), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(cache: object, **variables: str) -> dict:
    report = json.loads(python(PROGRAM, cache, **variables))
    np.testing.assert_allclose(report["y"], EXPECTED, rtol=0.01, atol=4)  # weights rounded to 1/127 of the largest
    return report


# ---- registration ----


def test_it_is_registered_with_priority_over_the_reference():
    registry = load_registry()
    entry = registry.backends["numba-int8"]
    assert entry.priority == 10
    assert entry.priority > registry.backends["numpy"].priority
    backend = registry.backend("numba-int8", 1)
    assert (backend.name, backend.isa) == ("numba-int8", ISAS[0])
    assert backend.schemes == ("f32", "bf16", "qd8-f32-qc8w", "qd8-f32-qb8w", "qd8-f32-qb4w")
    assert backend.default_scheme == "qd8-f32-qb8w"


def test_registering_imports_neither_numba_nor_numpy(tmp_path):
    program = """
import sys, dllm_numba
dllm_numba.dllm_register_backends(lambda *a, **k: None)
print([m for m in ("numba", "llvmlite", "numpy") if m in sys.modules])
"""
    assert python(program, tmp_path).strip() == "[]"


def test_without_numba_the_reason_is_told(monkeypatch):
    entries = {}
    dllm_numba.dllm_register_backends(lambda name, factory, **_: entries.update({name: factory}))
    for name in [m for m in sys.modules if m.startswith("dllm_numba.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)  # what `import numba` meets when it is not installed
    with pytest.raises(BackendUnavailable, match="numba") as caught:
        entries["numba-int8"](1)
    assert "pip install" in caught.value.hint


# ---- choice of the kernel ----


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache directory that is empty at first and shared by the processes of this file."""
    return tmp_path_factory.mktemp("numba-cache")


@pytest.mark.parametrize("isa", ISAS)
def test_the_forced_kernel_is_the_one_that_ran_and_a_second_process_compiles_nothing(isa, cache):
    first, second = (run(cache, DLLM_NUMBA_ISA=isa) for _ in range(2))
    for report in (first, second):
        assert report["isa"] == isa
        assert report["compiled"] == [f"gemm_{isa}"]
    assert first["vpdpbusd"] or isa != "avx512vnni"
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)
    assert "linear" in first["anew"]
    assert second["anew"] == []
    assert first["y"] == second["y"]


def test_without_the_instructions_the_portable_kernel_runs_and_is_compiled_anew(cache):
    run(cache, DLLM_NUMBA_ISA="portable")
    report = run(cache, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert report["isa"] == "portable"
    assert report["compiled"] == ["gemm_portable"]
    assert (report["hits"], report["misses"]) == (0, 1)


def test_forcing_what_cannot_run_here_is_an_error(tmp_path):
    program = """
from dllm_core.errors import UnsupportedError
from dllm_numba.backend import NumbaBackend
try:
    NumbaBackend(1)
except UnsupportedError as error:
    print(error.message, "|", error.hint)
"""
    variables = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "DLLM_NUMBA_ISA": "avx512vnni"}
    message = python(program, tmp_path, **variables)
    assert "DLLM_NUMBA_ISA=avx512vnni cannot run here" in message
    assert "can run here: portable" in message.split("|")[1]


@pytest.mark.parametrize("forced", ["avx2", "AVX512VNNI", "portable,avx512vnni"])
def test_an_unknown_kernel_is_an_error_that_lists_the_choices(forced, monkeypatch):
    monkeypatch.setenv("DLLM_NUMBA_ISA", forced)
    with pytest.raises(UsageError, match=f"DLLM_NUMBA_ISA={forced}") as caught:
        NumbaBackend(1)
    assert ", ".join(ISAS) in caught.value.hint


def test_an_argument_goes_before_the_variable(monkeypatch):
    monkeypatch.setenv("DLLM_NUMBA_ISA", "no such thing")
    assert NumbaBackend(1, "portable").isa == "portable"
    with pytest.raises(UsageError, match="isa=sse"):
        NumbaBackend(1, "sse")


def test_a_kernel_that_cannot_run_is_passed_over(monkeypatch):
    lame = dataclasses.replace(kernels.find_kernel(ISAS[0]), unavailable=lambda: "it is broken")
    find = kernels.find_kernel
    monkeypatch.setattr(kernels, "MODULES", {"lame": "gemm_lame", **kernels.MODULES})  # first choice
    monkeypatch.setattr(kernels, "find_kernel", lambda isa: lame if isa == "lame" else find(isa))
    assert NumbaBackend(1).isa == ISAS[0]
    with pytest.raises(UnsupportedError, match="isa=lame cannot run here: it is broken"):
        NumbaBackend(1, "lame")


def test_the_instruction_is_found_by_trying():
    from dllm_numba.vnni import operand_type

    assert operand_type("llvm.x86.avx512.no.such.intrinsic") is None


def test_every_kernel_has_a_name_and_can_be_asked_for():
    backend = NumbaBackend(1)
    assert backend.isa_rows() == ISAS
    assert [backend.with_isa(isa).isa for isa in ISAS] == ISAS


def test_without_a_place_for_the_cache_it_still_runs(tmp_path):
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    report = run(nowhere / "below-a-file")
    assert report["isa"] == ISAS[0]


# ---- threads ----


LOCK = threading.Lock()


def claim_all(claims, seen):
    """Work for a `Team`, in Python: take numbers until none is left."""
    while True:
        with LOCK:
            number = int(claims[0])
            claims[0] += 1
        if number >= claims[1]:
            return
        seen.append((number, threading.get_ident()))
        time.sleep(0.001)


def test_no_more_threads_than_asked_for_work():
    for limit, wanted, most in ((3, 2, 2), (3, 9, 3), (1, 9, 1)):
        team, seen = Team(limit), []
        for _ in range(10):
            team.run(wanted, claim_all, 0, 30, seen)
        assert sorted(number for number, _ in seen) == sorted([*range(30)] * 10)
        assert len({thread for _, thread in seen}) <= most
        assert threading.get_ident() in {thread for _, thread in seen}


def test_a_helper_that_wakes_too_late_is_not_waited_for():
    """The helper is held up by another call; the caller does all the work and returns."""
    team, seen, busy, free = Team(2), [], threading.Barrier(3), threading.Event()

    def wait(claims):
        busy.wait(60)
        free.wait(60)

    other = threading.Thread(target=lambda: team.run(2, wait, 0, 1))
    other.start()
    busy.wait(60)
    team.run(2, claim_all, 5, 20, seen)
    free.set()
    other.join()
    assert seen == [(number, threading.get_ident()) for number in range(5, 20)]


def test_what_fails_in_a_helper_is_raised_in_the_caller():
    caller = threading.current_thread()

    def fail(claims):
        if threading.current_thread() is not caller:
            started.set()
            raise KeyError("helper")
        started.wait(60)

    started = threading.Event()
    with pytest.raises(KeyError, match="helper"):
        Team(2).run(2, fail, 0, 1)


def test_several_python_threads_may_call_at_once(cache):
    program = """
import threading
import numpy as np
from dllm_core.tensors import from_array
from dllm_numba.backend import NumbaBackend

backend = NumbaBackend(2)
rng = np.random.default_rng(0)
w = backend.prepare_linear([from_array(rng.standard_normal((1000, 700)))], "qd8-f32-qb8w")
x = rng.standard_normal((300, 700)).astype(np.float32)
want, same = backend.linear(x, w), []
def work():
    for _ in range(5):
        same.append(np.array_equal(backend.linear(x, w), want))
threads = [threading.Thread(target=work) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(len(same), all(same))
"""
    assert python(program, cache).split() == ["20", "True"]


def test_a_forked_process_has_no_helpers_and_does_without(cache):
    program = """
import os
import numpy as np
from dllm_core.tensors import from_array
from dllm_numba.backend import NumbaBackend

backend = NumbaBackend(2)
rng = np.random.default_rng(0)
w = backend.prepare_linear([from_array(rng.standard_normal((1000, 700)))], "qd8-f32-qb4w")
x = rng.standard_normal((300, 700)).astype(np.float32)
want = backend.linear(x, w)
child = os.fork()
if child == 0:
    os._exit(7 if np.array_equal(backend.linear(x, w), want) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(program, cache).split() == ["7"]


def test_another_python_thread_may_be_the_first():
    backend = NumbaBackend(2)
    w = backend.prepare_linear([from_array(np.ones((4, 8)))], "qd8-f32-qc8w")
    found = []
    thread = threading.Thread(target=lambda: found.append(backend.linear(np.ones((1, 8), np.float32), w)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], backend.linear(np.ones((1, 8), np.float32), w))
