from dllm_core.testing.conformance import BackendConformance


class TestCffi(BackendConformance):
    backend_name = "cffi-simd"
    temporary_bytes = 4096
