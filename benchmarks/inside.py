"""The model inside: loading, decoding, memory, and the share of held-out prompts that it gets wrong."""

from __future__ import annotations

from dllm_core.api import Engine, load
from dllm_core.plugins import load_registry

from .common import ALL_SCHEMES, BACKENDS, make_backend
from .model import validated

PROMPT = "What is 217 + 384?"


def require(scheme: str, name: str) -> None:
    """NotImplementedError, which asv skips, where the model inside or the backend is missing."""
    if not load_registry().models["tiny"][0].is_dir():
        raise NotImplementedError("this build has no model inside")
    make_backend(name, scheme)


def load_inside(scheme: str, name: str) -> Engine:
    return load("tiny", backend=name, scheme=scheme)


class Load:
    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        require(scheme, name)
        load_inside(scheme, name)

    def time_load(self, scheme: str, name: str) -> None:
        load_inside(scheme, name)


class Memory:
    """Peak of the whole process. `peakmem_reference` is what it holds before it loads anything."""

    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        require(scheme, name)

    def peakmem_reference(self, scheme: str, name: str) -> None:
        make_backend(name, scheme)

    def peakmem_load(self, scheme: str, name: str) -> None:
        load_inside(scheme, name)

    def peakmem_answer(self, scheme: str, name: str) -> None:
        load_inside(scheme, name).generate(PROMPT)


class Decode:
    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")
    timeout = 600

    def setup(self, scheme: str, name: str) -> None:
        require(scheme, name)
        validated(name, scheme)
        self.engine = load_inside(scheme, name)
        self.engine.generate(PROMPT)

    def time_answer(self, *_: object) -> None:
        self.engine.generate(PROMPT)

    def track_wrong_answers(self, *_: object) -> float:
        """Held-out prompts answered wrongly, of 4 per task."""
        from dllm_train.tasks import held_out_set

        rows = held_out_set(4)
        answers = self.engine.generate_batch([row["prompt"] for row in rows])
        wrong = sum(answer.text != row["answer"] for row, answer in zip(rows, answers, strict=True))
        return 100.0 * wrong / len(rows)

    track_wrong_answers.unit = "percent"
