"""What the tests of the sweep share: an engine that computes nothing, its tasks, and a grid."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dllm_core.decoding.options import DecodeOptions
from dllm_core.decoding.strategies import STRATEGIES

ROWS = [{"task": "sum", "prompt": f"{i} + 1", "answer": str(i + 1)} for i in range(7)]
ROWS += [{"task": "word", "prompt": f"say {i}", "answer": f"{i}", "compare": "contains"} for i in range(2)]


GRID = """
name = "mine"
[[setting]]
name = "one a pass"
tokens_per_pass = 1
[[setting]]
name = "threshold {threshold}"
group = "thresholds"
threshold = [0.5, 0.9]
eos = "stop"
"""


@dataclass
class Stub:
    """An engine that answers every prompt rightly, except with a threshold below 0.6, and counts what it is asked."""

    canvas: int = 24
    asked: int = 0
    stop_after: int | None = None  # KeyboardInterrupt instead of this answer

    name = "stub"
    tokenizer = object()
    load_s = 0.5
    strategies = STRATEGIES
    backend = SimpleNamespace(name="numpy", isa="none", threads=1)
    model = SimpleNamespace(scheme="f32", facts=SimpleNamespace(max_length=64))

    def options(self, strategy: str | None = None, **given: Any) -> DecodeOptions:
        base = {"max_tokens": self.canvas, "block_length": 8}
        return DecodeOptions.build(given, {**base, **(STRATEGIES[strategy].options if strategy else {})})

    def encode(self, prompt: str) -> str:
        return prompt  # one token a character

    def generate_batch(self, prompts: list[str], **given: Any) -> list[Any]:
        self.asked += 1
        if self.asked == self.stop_after:
            raise KeyboardInterrupt
        options = self.options(**given)
        passes = options.total_steps if options.commit == "quota" else 3
        return [self.answer(p, options, passes, len(prompts)) for p in prompts]

    def answer(self, prompt: str, options: DecodeOptions, passes: int, together: int) -> SimpleNamespace:
        right = {row["prompt"]: row["answer"] for row in ROWS}[prompt]
        wrong = options.commit == "threshold" and options.threshold < 0.6 and prompt.startswith("say")
        return SimpleNamespace(
            text="?" if wrong else right,
            forward_passes=passes,
            rows_run=10 * passes * together,
            generate_s=0.01 * passes * together,
            finish_reason="masks_left" if wrong else "eos",
            masks_left=int(wrong),
            useful_tokens=2,
            canvas_tokens=self.canvas,
            peak_rss_bytes=1 << 20,
        )
