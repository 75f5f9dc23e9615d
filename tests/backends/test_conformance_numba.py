from dllm_core.testing.conformance import BackendConformance


class TestNumba(BackendConformance):
    backend_name = "numba-int8"
