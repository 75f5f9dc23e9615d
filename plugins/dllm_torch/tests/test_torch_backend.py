import pytest
import torch

from dllm_core import load
from dllm_core.plugins import load_registry
from dllm_core.testing.conformance import BackendConformance


class TestTorch(BackendConformance):
    backend_name = "torch"


def test_threads_are_torchs() -> None:
    backends = [load_registry().backend("torch", threads) for threads in (1, 2)]
    for backend, threads in zip(backends, (1, 2), strict=True):
        with backend._torch():
            assert torch.get_num_threads() == threads


@pytest.mark.parametrize("scheme", ["f32", "bf16"])
def test_the_model_inside_answers(scheme: str) -> None:
    engine = load("tiny", backend="torch", scheme=scheme, threads=1)
    assert engine.generate("What is 217 + 384?").text == "601"


def test_the_traces_of_the_model_inside_are_the_references() -> None:
    """Every token in the order in which it was committed, in float32."""
    found = []
    for name in ("torch", "numpy"):
        engine = load("tiny", backend=name, scheme="f32", threads=1)
        prompts = [engine.encode(text) for text in ("Sort 41 7 93 22", "What is 904 - 167?")]
        steps = engine.stream(prompts, engine.options(max_tokens=16, block_length=8))
        found.append([[step.canvas[i].tolist() for i in range(2)] for step in steps])
    assert found[0] == found[1]
