from dllm_core.testing.conformance import BackendConformance


class TestExample(BackendConformance):
    backend_name = "example"
