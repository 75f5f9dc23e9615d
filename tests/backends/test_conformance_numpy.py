from dllm_core.testing.conformance import BackendConformance


class TestNumpy(BackendConformance):
    backend_name = "numpy"
