"""Task files: one JSON object a line, {"task", "prompt", "answer"} and optionally "compare"."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import NotFoundError, UsageError, quote
from ..plugins import Registry
from .compare import COMPARE, fault

FILE_NAME = "heldout.jsonl"  # beside the folder of a model that a plugin registers


@dataclass(frozen=True)
class Task:
    """One prompt. `task` is the kind it belongs to, `compare` a key of `compare.COMPARE`."""

    task: str
    prompt: str
    answer: str
    compare: str = "exact"

    def right(self, text: str) -> bool:
        return COMPARE[self.compare](self.answer, text)


def read_tasks(path: Path) -> list[Task]:
    """All tasks of a file. UsageError names the first line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise NotFoundError(f"task file {quote(str(path))}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"task file {quote(str(path))} is not UTF-8") from error
    tasks = [_task(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise UsageError(f"task file {quote(str(path))} holds no task")
    return tasks


def _task(line: str, where: str) -> Task:
    form = 'a line is {"task": ..., "prompt": ..., "answer": ..., "compare": ...}; compare may be left out'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}", form) from error
    if not isinstance(row, dict) or not {"task", "prompt", "answer"} <= set(row):
        raise UsageError(f"{where} has no task, prompt and answer", form)
    for key, value in row.items():
        if key not in Task.__dataclass_fields__:
            raise UsageError(f"{where} has the unknown key {quote(key)}", form)
        if not isinstance(value, str):
            raise UsageError(f"{where}: {key} is {quote(value)}, no text", form)
    task = Task(**row)
    if task.compare not in COMPARE:
        raise UsageError(f"{where}: compare is {quote(task.compare)}", f"choose one of: {', '.join(COMPARE)}")
    wrong = fault(task.compare, task.answer)
    if wrong is not None:
        raise UsageError(f"{where}: {wrong}")
    return task


def limited(tasks: Sequence[Task], each: int) -> list[Task]:
    """At most `each` tasks of every kind, spread evenly over the file."""
    chosen: set[int] = set()
    for kind in kinds(tasks):
        own = [i for i, t in enumerate(tasks) if t.task == kind]
        chosen.update(own if len(own) <= each else (own[j * len(own) // each] for j in range(each)))
    return [t for i, t in enumerate(tasks) if i in chosen]


def kinds(tasks: Sequence[Task]) -> list[str]:
    """The kinds of task, in order of appearance."""
    return list(dict.fromkeys(t.task for t in tasks))


def digest(value: object) -> str:
    """A hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def tasks_digest(tasks: Sequence[Task]) -> str:
    return digest([asdict(t) for t in tasks])


def default_tasks(registry: Registry, model: str) -> Path:
    """The held-out tasks that ship with `model`, else those of the model inside."""
    for name in (model, "tiny"):
        if name in registry.models:
            path = registry.models[name][0].parent / FILE_NAME
            if path.exists():
                return path
    raise NotFoundError(f"model {quote(model)} ships no {FILE_NAME}", "give a task file: --tasks FILE.jsonl")
