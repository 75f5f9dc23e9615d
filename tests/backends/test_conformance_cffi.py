"""cffi-simd, on every instruction set of this CPU, against the reference."""

from dllm_core.testing.conformance import BackendConformance


class TestCffi(BackendConformance):
    backend_name = "cffi-simd"
