"""`dllm sweep` on a random model: what it writes and prints, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dllm_core.api import Engine

from .conftest import Result, assert_refused

Dllm = Callable[..., Result]
NAMES = ["quota 1", "quota 4", "fast, none", "fast, dual"]
GRID = """
[[setting]]
name = "quota {tokens_per_pass}"
max_tokens = 8
block_length = 4
tokens_per_pass = [1, 4]

[[setting]]
name = "fast, {cache}"
strategy = "fast"
max_tokens = 8
block_length = 4
cache = ["none", "dual"]
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoken: Path) -> Path:
    """A folder with tasks.jsonl and grid.toml; the model is `spoken`."""
    monkeypatch.setenv("DLLM_MODEL", str(spoken))
    monkeypatch.chdir(tmp_path)
    rows = [
        {"task": kind, "prompt": f"{kind} {i}", "answer": "x", "compare": "contains"} for kind in "ab" for i in (1, 2)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path


def sweep(dllm: Dllm, *more: object) -> Result:
    return dllm("sweep", "--tasks", "tasks.jsonl", "--grid", "grid.toml", "--out", "r.json", *more)


def points(folder: Path) -> list[dict]:
    return json.loads((folder / "r.json").read_text())["points"]


def test_a_sweep_writes_a_point_for_every_setting(dllm: Dllm, work: Path) -> None:
    result = sweep(dllm, "--table", "--plot", "curve.svg")
    assert result.code == 0, result.err
    found = points(work)
    assert [p["name"] for p in found] == NAMES
    assert [p["forward_passes"] for p in found[:2]] == [8, 2]
    for p in found:
        assert p["prompts"] == len(p["marks"]) == 4
        assert p["options"]["max_tokens"] == 8
        assert set(p["tasks"]) == {"a", "b"}
        assert p["seconds"] > 0
    environment = json.loads((work / "r.json").read_text())["environment"]
    assert (environment["backend"], environment["threads"], environment["scheme"]) == ("numpy", 1, "f32")
    assert environment["cpu"]
    header, *lines = result.out.splitlines()
    assert header.split()[:3] == ["setting", "accuracy", "passes"]
    assert [line.split("  ")[0].removesuffix(" *") for line in lines] == NAMES
    for i, name in enumerate(NAMES, 1):
        assert f"{i}/4 {name}: " in result.err
    assert ">fast, dual<" in (work / "curve.svg").read_text()


def test_a_point_is_what_run_gives(dllm: Dllm, work: Path) -> None:
    """Accuracy, passes and rows of one prompt beside those of `dllm run` with the same options."""
    options = ["--strategy", "fast", "--cache", "dual", "--max-tokens", "8", "--block-length", "4"]
    answer = dllm("run", "a 1", *options, "--json").json
    row = {"task": "a", "prompt": "a 1", "answer": answer["text"]}
    (work / "tasks.jsonl").write_text(json.dumps(row))
    assert sweep(dllm).code == 0
    point = points(work)[3]
    assert (point["name"], point["correct"]) == ("fast, dual", 1)
    assert (point["forward_passes"], point["rows_run"]) == (answer["forward_passes"], answer["rows_run"])
    assert point["useful_length"] == answer["useful_tokens"]
    assert point["finish_reasons"] == {answer["finish_reason"]: 1}


def test_json_and_markdown_of_a_finished_file_run_nothing(dllm: Dllm, work: Path, monkeypatch) -> None:
    assert sweep(dllm).code == 0
    monkeypatch.setenv("DLLM_MODEL", "gone")
    shown = dllm("sweep", "--no-run", "--out", "r.json", "--json").json
    assert [p["name"] for p in shown["points"]] == NAMES
    lines = dllm("sweep", "--no-run", "--out", "r.json", "--table", "markdown").out.splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)


def test_an_interrupt_keeps_what_is_finished_and_the_same_command_goes_on(dllm: Dllm, work: Path, monkeypatch) -> None:
    plain, calls = Engine.generate_batch, 0

    def interrupted(self, prompts, **given):
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return plain(self, prompts, **given)

    monkeypatch.setattr(Engine, "generate_batch", interrupted)
    result = sweep(dllm)
    assert (result.code, result.out) == (130, "")
    assert "the same command goes on" in result.err
    first = points(work)
    assert [p["name"] for p in first] == NAMES[:1]
    monkeypatch.setattr(Engine, "generate_batch", plain)
    result = sweep(dllm)
    assert result.code == 0
    assert [line.split(" ")[0] for line in result.err.splitlines()] == ["2/4", "3/4", "4/4"]
    assert points(work)[0] == first[0]
    assert [p["name"] for p in points(work)] == NAMES


def test_a_file_of_another_sweep_is_refused_and_kept(dllm: Dllm, work: Path) -> None:
    assert sweep(dllm).code == 0
    before = (work / "r.json").read_text()
    assert_refused(sweep(dllm, "--limit", 1), 2, "r.json", "other tasks")
    (work / "grid.toml").write_text(GRID.replace("[1, 4]", "[1, 2]"))
    assert_refused(sweep(dllm), 2, "r.json", "other grid")
    (work / "grid.toml").write_text(GRID)
    assert_refused(sweep(dllm, "--together", 2), 2, "together 1", "2")
    assert (work / "r.json").read_text() == before
    (work / "r.json").write_text("mine")
    assert_refused(sweep(dllm), 2, "no result of a sweep")
    assert (work / "r.json").read_text() == "mine"


def test_limit_and_together(dllm: Dllm, work: Path) -> None:
    assert sweep(dllm, "--limit", 1, "--together", 2).code == 0
    data = json.loads((work / "r.json").read_text())
    assert (data["tasks"]["prompts"], data["tasks"]["kinds"]) == (2, {"a": 1, "b": 1})
    assert "2 prompts were decoded together" in data["notes"][0]


def test_the_held_out_tasks_are_the_default(dllm: Dllm, work: Path) -> None:
    (work / "grid.toml").write_text("[[setting]]\nmax_tokens = 2\nblock_length = 2\n")
    result = dllm("sweep", "--grid", "grid.toml", "--limit", 1, "--out", "r.json", "--together", 13)
    assert result.code == 0, result.err
    data = json.loads((work / "r.json").read_text())
    assert data["tasks"]["source"] == "heldout.jsonl"
    assert len(data["tasks"]["kinds"]) == data["tasks"]["prompts"] == 13


def test_judge_writes_the_task_file(dllm: Dllm, work: Path) -> None:
    assert dllm("judge", "--write", "own.jsonl", "--per-task", 2).code == 0
    rows = [json.loads(line) for line in (work / "own.jsonl").read_text().splitlines()]
    assert len(rows) == 26
    assert all(set(row) == {"task", "prompt", "answer"} for row in rows)


def test_what_is_refused(dllm: Dllm, work: Path, folder: Path, monkeypatch) -> None:
    assert_refused(sweep(dllm, "--plot", "x.jpg"), 2, "x.jpg", ".svg")
    both = sweep(dllm, "--json", "--table")
    assert (both.code, both.out) == (2, "")
    assert "--json and --table" in json.loads(both.err)["error"]["message"]
    assert_refused(dllm("sweep", "--out", "no/where/r.json"), 3, "no/where")
    assert_refused(dllm("sweep", "--no-run", "--out", "none.json"), 3, "none.json")
    assert_refused(dllm("sweep", "--tasks", "none.jsonl", "--out", "r.json"), 3, "none.jsonl")
    assert_refused(sweep(dllm, "--grid", "fastest"), 3, "fastest", "quick")
    assert_refused(sweep(dllm, "-m", folder), 2, "tokenizer.json")
    (work / "grid.toml").write_text("[[setting]]\nmax_tokens = 200\n")
    assert_refused(sweep(dllm), 2, "limit is 160")
    (work / "grid.toml").write_text("[[setting]]\ncache = 'prefix'\nrevoke = 'confidence'\n")
    assert_refused(sweep(dllm), 2, "--revoke confidence")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_refused(sweep(dllm, "--plot", "x.svg"), 2, 'pip install "dllm[plot]"')
    assert not (work / "r.json").exists()
