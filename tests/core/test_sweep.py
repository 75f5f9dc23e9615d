"""The sweep's library: comparisons, task files and grids."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import dllm_tiny
import pytest
from dllm_train.tasks import held_out_set

from dllm_core.decoding.strategies import STRATEGIES
from dllm_core.errors import NotFoundError, UsageError
from dllm_core.plugins import Registry
from dllm_core.sweep.compare import COMPARE, fault
from dllm_core.sweep.grid import DEFAULT, GRIDS, expand, load_grid, resolved
from dllm_core.sweep.tasks import default_tasks, limited, read_tasks, tasks_digest

from .sweep_stub import GRID, ROWS, Stub

# ---- comparisons ----


@pytest.mark.parametrize(
    ("compare", "expected", "text", "right"),
    [
        ("exact", "601", "601", True),
        ("exact", "601", "601 ", False),
        ("contains", "Oslo", "It is Oslo.", True),
        ("contains", "Oslo", "It is oslo.", False),
        ("json", '{"a": 1, "b": [2]}', '{"b":[2],  "a":1.0}', True),
        ("json", '{"a": 1}', '{"a": "1"}', False),
        ("json", "1", "true", False),
        ("json", "1.5", "15e-1", True),
        ("json", '{"a": 1}', 'Here: {"a": 1}', False),
        ("json", "1", "NaN", False),
        ("json", "1", "[" * 100_000, False),
        ("number", "601", "217 + 384 = 601.", True),
        ("number", "601", "601 is 217 + 384", False),
        ("number", "1234.5", "about 1,234.50", True),
        ("number", "3", "10-3", True),
        ("number", "-3", "it is -3", True),
        ("number", "-3", "10 -3", True),
        ("number", "1e3", "1000", True),
        ("number", "3", "none", False),
        ("number", "1", "1e999999999", False),
        ("regex", "^(six|6)$", "six", True),
        ("regex", "^(six|6)$", "sixty", False),
    ],
)
def test_comparisons(compare, expected, text, right):
    assert fault(compare, expected) is None
    assert COMPARE[compare](expected, text) == right


@pytest.mark.parametrize(
    ("compare", "expected"), [("json", "{"), ("json", "NaN"), ("number", "six"), ("number", ""), ("regex", "(")]
)
def test_answers_that_can_never_be_right(compare, expected):
    assert fault(compare, expected)


# ---- task files ----


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    return path


def test_task_files(tmp_path):
    tasks = read_tasks(write(tmp_path / "t.jsonl", ROWS))
    assert [asdict(t) for t in tasks] == [{"compare": "exact", **row} for row in ROWS]
    few = limited(tasks, 3)
    assert [t.prompt for t in few] == ["0 + 1", "2 + 1", "4 + 1", "say 0", "say 1"]  # spread, not the first ones
    assert limited(tasks, 100) == tasks
    assert tasks_digest(tasks) == tasks_digest(list(tasks))
    for key in ("task", "prompt", "answer", "compare"):
        changed = [replace(tasks[0], **{key: "json" if key == "compare" else "0"}), *tasks[1:]]
        assert tasks_digest(changed) != tasks_digest(tasks)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", ":2 is no JSON"),
        ("[1]", ":2 has no task"),
        ('{"task": "a", "prompt": "b"}', ":2 has no task, prompt and answer"),
        ('{"task": "a", "prompt": "b", "answer": 3}', ":2: answer is 3"),
        ('{"task": "a", "prompt": "b", "answer": "3", "compares": "x"}', "unknown key 'compares'"),
        ('{"task": "a", "prompt": "b", "answer": "3", "compare": "x"}', "compare is 'x'"),
        ('{"task": "a", "prompt": "b", "answer": "x", "compare": "number"}', "no number"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(UsageError) as caught:
        read_tasks(path)
    assert message in caught.value.message


def test_missing_and_empty_task_files(tmp_path):
    with pytest.raises(NotFoundError):
        read_tasks(tmp_path / "none")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UsageError, match="holds no task"):
        read_tasks(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_tasks(tmp_path / "binary")


def test_the_held_out_set_ships_as_its_function_writes_it():
    path = Path(dllm_tiny.__file__).parent / "heldout.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == held_out_set(50)
    registry = Registry(models={"tiny": (path.parent / "model", "")})
    assert default_tasks(registry, "some/folder") == path
    assert len(read_tasks(path)) == len(held_out_set(50))
    with pytest.raises(NotFoundError):
        default_tasks(Registry(), "tiny")


# ---- grids ----


def test_lists_make_settings():
    made = expand("g", "{a} of {b}", {"a": [1, 2], "b": ["x", "y"], "stop": ["."]})
    assert [s.name for s in made] == ["1 of x", "1 of y", "2 of x", "2 of y"]
    assert made[1].given == {"a": 1, "b": "y", "stop": ["."]}


def test_tokens_per_pass_and_the_canvas_in_one_block():
    for per_pass, steps in ((1, 24), (2, 12), (5, 5), (8, 3), (100, 3)):  # a block of 8 takes one pass at least
        (setting,) = expand("g", "n", {"tokens_per_pass": per_pass, "block_length": 8})
        assert resolved(setting, Stub()).options.total_steps == steps
    (setting,) = expand("g", "n", {"tokens_per_pass": 100, "block_length": "canvas"})
    options = resolved(setting, Stub()).options
    assert (options.total_steps, options.block_length, options.blocks) == (1, 24, 1)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("canvas", [8, 24, 128])
def test_the_grids_of_the_program_are_accepted(name, canvas):
    grid = load_grid(name, Stub(canvas))
    assert [s.name for s in grid.settings[: len(STRATEGIES)]] == list(STRATEGIES)
    assert all(s.options is not None and s.options.max_tokens == canvas for s in grid.settings)


def test_the_default_grid_has_every_kind_of_decoding():
    options = [s.options for s in load_grid("default", Stub()).settings]

    def has(**fields: Any) -> bool:
        return any(all(getattr(o, k) == v for k, v in fields.items()) for o in options)

    assert len(DEFAULT) > 10
    for cache in ("none", "prefix", "dual", "interstep"):
        assert has(cache=cache)
    for revoke in ("confidence", "remdm"):
        assert has(revoke=revoke)
    for steps in (24, 12, 6, 3):
        assert has(steps=steps, block_length=24, eos="keep")  # pure diffusion
        assert has(steps=steps, block_length=8, eos="keep")
        assert has(steps=steps, block_length=8, eos="stop")
    for threshold in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99):
        assert has(commit="threshold", threshold=threshold, block_length=8)
    for commit in ("factor", "entropy-bound", "entropy-exit"):
        assert has(commit=commit)


def test_grid_files(tmp_path):
    path = tmp_path / "g.toml"
    path.write_text(GRID)
    grid = load_grid(str(path), Stub())
    assert (grid.name, [s.name for s in grid.settings]) == ("mine", ["one a pass", "threshold 0.5", "threshold 0.9"])
    assert [s.options.commit for s in grid.settings] == ["quota", "threshold", "threshold"]
    again = grid.digest()
    path.write_text(GRID.replace("0.9", "0.8"))
    assert load_grid(str(path), Stub()).digest() != again
    assert load_grid(str(path), Stub(canvas=32)).digest() != load_grid(str(path), Stub()).digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "is no TOML"),
        ("threshold = 0.5", "no list of settings"),
        ("setting = []", "has no settings"),
        ("[[setting]]\nname = 5", "name is 5"),
        ("[[setting]]\nname = 'a'\nthresold = 0.5", "setting 'a': unknown option 'thresold'"),
        ("[[setting]]\nname = 'a'\nthreshold = 7", "setting 'a': --threshold is 7"),
        ("[[setting]]\nname = 'a'\nstrategy = 'fast'\nrevoke = 'remdm'", "setting 'a': --revoke remdm"),
        ("[[setting]]\nname = 'a'\ntokens_per_pass = 0", "tokens_per_pass is 0"),
        ("[[setting]]\nname = 'a'\ntokens_per_pass = 2\nsteps = 4", "exclude each other"),
        ("[[setting]]\nname = 'a'\nstop = 'x'", "stop is 'x'"),
        ("[[setting]]\nname = 'a'\nsuppress_ids = ['x']", "suppress_ids is ['x']"),
        ("[[setting]]\nname = 'a'\nthreshold = [0.5, 0.6]", "two settings are called 'a'"),
    ],
)
def test_bad_grids_are_refused_before_anything_runs(tmp_path, text, message):
    path = tmp_path / "g.toml"
    path.write_text(text)
    stub = Stub()
    with pytest.raises(UsageError) as caught:
        load_grid(str(path), stub)
    assert message in caught.value.message
    assert stub.asked == 0


def test_an_unknown_grid_names_the_known_ones():
    with pytest.raises(NotFoundError) as caught:
        load_grid("defualt", Stub())
    assert "default" in (caught.value.hint or "")
