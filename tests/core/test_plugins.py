"""Broken plugins are reported and never fatal: each is a real distribution on sys.path."""

from __future__ import annotations

import sys

import pytest

from dllm_core.errors import BackendUnavailable, NotFoundError, UsageError
from dllm_core.plugins import load_registry

OWN = {"numpy", "numba-int8", "cffi-simd", "torch"}

GOOD = """
from dllm_core import hookimpl

def make(threads):
    from dllm_numpy.backend import NumpyBackend
    return NumpyBackend(threads)

@hookimpl
def dllm_register_backends(register):
    register("good", make, priority=-5, summary="a copy of the reference")

@hookimpl
def dllm_register_models(register):
    register("toy", "/nowhere/toy", "a model that is not there")

@hookimpl
def dllm_register_families(register):
    register("toyfamily", lambda config, tensors, backend, scheme: None)
"""

BROKEN = {
    "import error": ("import no_such_module_anywhere", "ModuleNotFoundError"),
    "syntax error": ("def broken(:", "SyntaxError"),
    "exit at import": ("import sys; sys.exit(3)", "SystemExit"),
    "hook raises": (
        "from dllm_core import hookimpl\n@hookimpl\ndef dllm_register_backends(register):\n    raise KeyError('x')",
        "KeyError",
    ),
    "bad hook signature": (
        "from dllm_core import hookimpl\n@hookimpl\ndef dllm_register_backends(register, colour):\n    pass",
        "PluginValidationError",
    ),
    "unknown hook": (
        "from dllm_core import hookimpl\n@hookimpl\ndef dllm_register_dragons(register):\n    pass",
        "PluginValidationError",
    ),
    "duplicate backend": (
        "from dllm_core import hookimpl\n@hookimpl\ndef dllm_register_backends(register):\n"
        "    register('fresh', lambda threads: None)\n    register('numpy', lambda threads: None)",
        "numpy already registered",
    ),
    "missing argument": (
        "from dllm_core import hookimpl\n@hookimpl\ndef dllm_register_backends(register):\n    register('half')",
        "TypeError",
    ),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(name, source): a package `name` with an entry point in group "dllm", as pip would leave it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def add(name, source, point=None):
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[dllm]\n{point or name} = {name}\n")
        names.append(name)

    yield add
    for name in names:
        sys.modules.pop(name, None)


def status(registry, name):
    (found,) = [plugin for plugin in registry.plugins if plugin.module == name]
    return found


def test_a_good_plugin_registers_everything(install):
    install("dllm_test_good", GOOD)
    registry = load_registry()
    found = status(registry, "dllm_test_good")
    assert (found.error, found.version, found.name) == (None, "1.5", "dllm_test_good")
    assert set(registry.backends) >= {*OWN, "good"}
    assert registry.backends["good"].plugin == "dllm_test_good"
    assert registry.backends["good"].priority == -5
    assert registry.backend("good", 1).name == "numpy"
    assert registry.models["toy"][0].name == "toy"
    assert "toyfamily" in registry.families


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_reported_and_the_others_work(install, source, reason):
    install("dllm_test_broken", source)
    install("dllm_test_good", GOOD)
    registry = load_registry()
    error = status(registry, "dllm_test_broken").error
    assert error is not None
    assert reason in error
    assert status(registry, "dllm_test_good").error is None
    assert set(registry.backends) == {*OWN, "good"}  # nothing of the broken one, not even what came before the fault
    assert registry.backend("numpy", 1).name == "numpy"


def test_two_plugins_with_one_entry_point_name(install):
    install("dllm_test_one", GOOD, point="same")
    install("dllm_test_two", GOOD.replace('"good"', '"second"').replace('"toy', '"second'), point="same")
    registry = load_registry()
    errors = [status(registry, name).error for name in ("dllm_test_one", "dllm_test_two")]
    assert sum(error is None for error in errors) == 1
    assert len({"good", "second"} & set(registry.backends)) == 1


def test_our_own_backends_come_first_and_through_the_same_door():
    registry = load_registry()
    assert [plugin.error for plugin in registry.plugins] == [None] * len(registry.plugins)
    assert {"dllm_numpy", "dllm_numba", "dllm_cffi"} <= {plugin.module for plugin in registry.plugins}
    assert set(registry.backends) == OWN


def test_an_unknown_backend_is_never_replaced():
    with pytest.raises(UsageError) as error:
        load_registry().backend("numpi", 1)
    assert "numpi" in error.value.message
    assert "did you mean 'numpy'" in error.value.hint
    assert "numba-int8" in error.value.hint
    assert "broken" not in error.value.hint


def test_whoever_asks_for_a_backend_of_a_broken_plugin_hears_of_it(install):
    install("dllm_test_broken", "import no_such_module_anywhere")
    with pytest.raises(UsageError) as error:
        load_registry().backend("mine", 1)
    assert "broken plugins, see dllm plugins: dllm_test_broken; known" in error.value.hint


UNAVAILABLE = """
from dllm_core import hookimpl
from dllm_core.errors import BackendUnavailable, UsageError

def absent(threads):
    raise BackendUnavailable("needs a GPU")

def crash(threads):
    raise OSError("library is gone")

def refuse(threads):
    raise UsageError("DLLM_ISA=mmx is unknown")

@hookimpl
def dllm_register_backends(register):
    register("absent", absent, priority=1002)
    register("crash", crash, priority=1001)
"""


def test_the_best_backend_is_one_that_starts(install):
    install("dllm_test_away", UNAVAILABLE)
    registry = load_registry()
    assert registry.best_backend(1).name in OWN
    with pytest.raises(BackendUnavailable, match="GPU"):
        registry.backend("absent", 1)
    for name in OWN:
        del registry.backends[name]
    with pytest.raises(NotFoundError) as error:
        registry.best_backend(1)
    assert "absent: needs a GPU" in error.value.hint
    assert "crash: OSError: library is gone" in error.value.hint


def test_a_setting_of_the_users_is_not_passed_over(install):
    install("dllm_test_away", UNAVAILABLE + "    register('strict', refuse, priority=1000)\n")
    with pytest.raises(UsageError, match="mmx"):
        load_registry().best_backend(1)
