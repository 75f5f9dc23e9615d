"""Measures every setting of a grid and keeps the result file up to date."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..errors import UsageError
from .grid import Grid, Setting
from .result import Point, Sweep, resumed, save
from .tasks import Task, kinds, tasks_digest

if TYPE_CHECKING:
    from ..api import Engine, Generation

MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors")
Answer = tuple["Generation", float]  # and the seconds that this prompt alone accounts for


def begin(engine: Engine, folder: Path, tasks: Sequence[Task], source: str, grid: Grid, together: int) -> Sweep:
    """The sweep before its first point. UsageError if a prompt and its canvas exceed the model's limit."""
    if engine.tokenizer is None:
        raise UsageError(f"model {engine.name} has no tokenizer.json", "a sweep compares texts: use a model with one")
    _all_fit(engine, tasks, grid)
    notes = []
    if together > 1:
        notes.append(
            f"{together} prompts were decoded together: forward passes are those of the whole batch, "
            "seconds and rows are its share"
        )
    counts = Counter(t.task for t in tasks)
    return Sweep(
        {
            "source": source,
            "digest": tasks_digest(tasks),
            "prompts": len(tasks),
            "kinds": {k: counts[k] for k in kinds(tasks)},
        },
        {"name": grid.name, "digest": grid.digest(), "settings": [s.name for s in grid.settings]},
        environment(engine, folder, together),
        notes,
    )


def _all_fit(engine: Engine, tasks: Sequence[Task], grid: Grid) -> None:
    longest = max(tasks, key=lambda t: len(engine.encode(t.prompt)))
    prompt, limit = len(engine.encode(longest.prompt)), engine.model.facts.max_length
    for setting in grid.settings:
        canvas = setting.options.max_tokens if setting.options else 0
        if prompt + canvas > limit:
            raise UsageError(
                f"the longest prompt ({prompt} tokens) and the canvas of setting {setting.name!r} ({canvas}) "
                f"make {prompt + canvas}, the model's limit is {limit}",
                f"it begins with {longest.prompt[:40]!r}",
            )


def run(
    engine: Engine,
    fresh: Sweep,
    tasks: Sequence[Task],
    grid: Grid,
    out: Path,
    on_prompt: Callable[[str, int, int], None] = lambda name, done, total: None,
    on_point: Callable[[Point, int], None] = lambda point, done: None,
) -> Sweep:
    """Measure the settings that `out` does not hold yet, saving after each. Returns the finished sweep."""
    sweep = resumed(fresh, out)
    save(sweep, out)  # whatever forbids writing shows before the work
    for setting in grid.settings:
        if sweep.point(setting.name) is None:
            point = measure(engine, setting, tasks, sweep.environment["together"], on_prompt)
            sweep.points.append(point)
            save(sweep, out)
            on_point(point, len(sweep.points))
    return sweep


def measure(
    engine: Engine,
    setting: Setting,
    tasks: Sequence[Task],
    together: int = 1,
    on_prompt: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Point:
    """Decode all tasks with one setting. The first prompt is decoded once before, untimed."""
    prompts = [engine.encode(t.prompt) for t in tasks]
    answers: list[Answer] = []
    engine.generate_batch(prompts[:1], **setting.given)
    for at in range(0, len(prompts), together):
        batch = prompts[at : at + together]
        answers += [(a, a.generate_s / len(batch)) for a in engine.generate_batch(batch, **setting.given)]
        on_prompt(setting.name, len(answers), len(prompts))
    right = [task.right(a.text or "") for task, (a, _) in zip(tasks, answers, strict=True)]
    return _point(setting, tasks, answers, right, together)


def _point(setting: Setting, tasks: Sequence[Task], answers: list[Answer], right: list[bool], together: int) -> Point:
    assert setting.options is not None
    found = [a for a, _ in answers]
    n, seconds = len(found), sum(s for _, s in answers)
    passes = [a.forward_passes for a in found]
    batches = found[::together]  # every answer of a batch carries the passes and rows of all of it
    return Point(
        name=setting.name,
        group=setting.group,
        options=asdict(setting.options),
        prompts=n,
        correct=sum(right),
        accuracy=sum(right) / n,
        tasks={kind: _kind([i for i, t in enumerate(tasks) if t.task == kind], right, passes) for kind in kinds(tasks)},
        marks="".join("1" if r else "0" for r in right),
        forward_passes=sum(passes) / n,
        rows_run=sum(a.rows_run for a in batches) / n,
        seconds=seconds,
        ms_per_prompt=1e3 * seconds / n,
        ms_per_pass=1e3 * seconds / sum(a.forward_passes for a in batches),
        useful_tokens_per_s=sum(a.useful_tokens for a in found) / seconds,
        canvas_tokens_per_s=sum(a.canvas_tokens for a in found) / seconds,
        useful_length=sum(a.useful_tokens for a in found) / n,
        ended_by_eos=sum(a.finish_reason == "eos" for a in found) / n,
        with_masks_left=sum(a.masks_left > 0 for a in found) / n,
        finish_reasons=dict(sorted(Counter(a.finish_reason for a in found).items())),
        peak_rss_bytes=max(a.peak_rss_bytes for a in found),
    )


def _kind(own: list[int], right: list[bool], passes: list[int]) -> dict[str, Any]:
    return {
        "prompts": len(own),
        "correct": sum(right[i] for i in own),
        "forward_passes": sum(passes[i] for i in own) / len(own),
    }


def environment(engine: Engine, folder: Path, together: int) -> dict[str, Any]:
    """Everything that the figures depend on."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dllm": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": engine.backend.threads,
        "backend": engine.backend.name,
        "isa": engine.backend.isa,
        "scheme": engine.model.scheme,
        "model": engine.name,
        "weights": weights_digest(folder),
        "load_s": engine.load_s,
        "together": together,
    }


def cpu_name() -> str:
    """The processor as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def weights_digest(folder: Path, sample: int = 1 << 20) -> str:
    """A hash by which two checkpoints differ: name, size, first and last MiB of every file that a model has."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern)):
        size = path.stat().st_size
        found.update(f"{path.name} {size}\n".encode())
        with open(path, "rb") as file:
            found.update(file.read(sample))
            file.seek(max(size - sample, 0))
            found.update(file.read(sample))
    return found.hexdigest()[:16]
