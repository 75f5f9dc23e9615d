"""The model inside: answers per strategy and per backend, loading, and the share of held-out prompts it gets wrong."""

from __future__ import annotations

from dllm_core.api import Engine, load
from dllm_core.plugins import load_registry

from .common import BACKENDS, FAST, SCHEMES, Timing, make_backend
from .model import validated

PROMPT = "What is 217 + 384?"
STRATEGIES = ["reference", "fast", "fast-dual", "fast-prefix", "careful"]


def require(name: str, scheme: str) -> None:
    """NotImplementedError, which asv skips, where the model inside or the backend is missing."""
    if not load_registry().models["tiny"][0].is_dir():
        raise NotImplementedError("this build has no model inside")
    make_backend(name, scheme)


def load_inside(name: str, scheme: str) -> Engine:
    return load("tiny", backend=name, scheme=scheme)


class Load(Timing):
    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        require(name, scheme)
        load_inside(name, scheme)

    def time_load(self, name: str, scheme: str) -> None:
        load_inside(name, scheme)


class Strategy(Timing):
    """One answer with every strategy, on the fast backend in its default scheme."""

    params = STRATEGIES
    param_names = ("strategy",)

    def setup(self, strategy: str) -> None:
        backend = make_backend(FAST)
        require(FAST, backend.default_scheme)
        validated(FAST, backend.default_scheme)
        self.engine = load_inside(FAST, backend.default_scheme)
        if strategy not in self.engine.strategies:
            raise NotImplementedError(f"no strategy {strategy}")
        self.answer(strategy)

    def answer(self, strategy: str) -> None:
        self.engine.generate(PROMPT, strategy=strategy)

    def time_answer(self, strategy: str) -> None:
        self.answer(strategy)


class Answer(Timing):
    """One answer with the fast strategy on every backend."""

    params = (BACKENDS, SCHEMES)
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        require(name, scheme)
        validated(name, scheme)
        self.engine = load_inside(name, scheme)
        self.engine.generate(PROMPT, strategy="fast")

    def time_answer(self, *_: object) -> None:
        self.engine.generate(PROMPT, strategy="fast")


class Accuracy:
    """What a scheme costs in answers: the share of held-out prompts that go wrong, 8 of every task."""

    params = (SCHEMES,)
    param_names = ("scheme",)

    def setup(self, scheme: str) -> None:
        require(FAST, scheme)
        self.engine = load_inside(FAST, scheme)

    def track_wrong_answers(self, scheme: str) -> float:
        from dllm_train.tasks import held_out_set

        rows = held_out_set(8)
        answers = self.engine.generate_batch([row["prompt"] for row in rows], strategy="fast")
        wrong = sum(answer.text != row["answer"] for row, answer in zip(rows, answers, strict=True))
        return 100.0 * wrong / len(rows)

    track_wrong_answers.unit = "%"
