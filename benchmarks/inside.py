"""The model inside: loading, decoding, memory, and the share of held-out prompts that it gets wrong."""

from __future__ import annotations

import numpy as np

from dllm_core.api import Engine, load
from dllm_core.errors import DllmError

from .common import ALL_SCHEMES, BACKENDS, make_backend
from .model import validated

PROMPT = "What is 217 + 384?"


def load_inside(scheme: str, name: str) -> Engine:
    """The model inside; NotImplementedError, which asv skips, where it or the backend is missing."""
    make_backend(name, scheme)
    try:
        return load("tiny", backend=name, scheme=scheme)
    except DllmError as error:
        raise NotImplementedError(error.message) from error


class Load:
    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")

    def setup(self, scheme: str, name: str) -> None:
        load_inside(scheme, name)

    def time_load(self, scheme: str, name: str) -> None:
        load_inside(scheme, name)

    def peakmem_load(self, scheme: str, name: str) -> None:
        load_inside(scheme, name)


class Memory:
    """What a process holds before it loads anything: peakmem_ counts the setup too."""

    def peakmem_reference(self) -> None:
        np.zeros(1)


class Decode:
    params = (ALL_SCHEMES, BACKENDS)
    param_names = ("scheme", "backend")
    timeout = 600

    def setup(self, scheme: str, name: str) -> None:
        validated(name, scheme)
        self.engine = load_inside(scheme, name)
        self.engine.generate(PROMPT)

    def time_answer(self, *_: object) -> None:
        self.engine.generate(PROMPT)

    def peakmem_answer(self, *_: object) -> None:
        self.engine.generate(PROMPT)

    def track_wrong_answers(self, *_: object) -> float:
        """Held-out prompts answered wrongly, of 4 per task."""
        from dllm_train.tasks import held_out_set

        rows = held_out_set(4)
        answers = self.engine.generate_batch([row["prompt"] for row in rows])
        wrong = sum(answer.text != row["answer"] for row, answer in zip(rows, answers, strict=True))
        return 100.0 * wrong / len(rows)

    track_wrong_answers.unit = "percent"
