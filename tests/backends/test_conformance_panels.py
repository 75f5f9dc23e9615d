"""Backends that say no more than where their weights lie."""

from dllm_numpy.panels import PanelBackend

from dllm_core.packing import Layout
from dllm_core.quant import get_scheme
from dllm_core.testing.conformance import BackendConformance


class Odd(PanelBackend):
    """Panels that divide nothing."""

    name = "odd"

    def layout(self, scheme):
        zero = {4: 8, 8: 128}.get(get_scheme(scheme).bits, 0)
        return Layout("odd", 1, "any", scheme, columns=24, depth=6, zero=zero)


class TestPanels(BackendConformance):
    @classmethod
    def make(cls, threads):
        return Odd(threads)


class TestRows(BackendConformance):
    @classmethod
    def make(cls, threads):
        return PanelBackend(threads)
