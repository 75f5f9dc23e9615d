"""The sweep's library: measuring with a stub engine, resuming, what is read from points, tables and plots."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dllm_core.errors import NotFoundError, UsageError
from dllm_core.sweep import analysis, plot, run, table
from dllm_core.sweep.grid import Grid, load_grid
from dllm_core.sweep.result import Point, Sweep, read, save
from dllm_core.sweep.tasks import Task

from .sweep_stub import GRID, ROWS, Stub

# ---- measuring and resuming ----


@pytest.fixture
def grid(tmp_path) -> Grid:
    (tmp_path / "g.toml").write_text(GRID)
    return load_grid(str(tmp_path / "g.toml"), Stub())


TASKS = [Task(**row) for row in ROWS]


def sweep_with(stub: Stub, grid: Grid, out: Path, tasks: list[Task] = TASKS, together: int = 1, **hooks: Any) -> Sweep:
    fresh = run.begin(stub, out.parent, tasks, "rows.jsonl", grid, together)
    return run.run(stub, fresh, tasks, grid, out, **hooks)


def test_what_a_point_holds(grid, tmp_path):
    seen, done = [], []
    sweep = sweep_with(
        Stub(),
        grid,
        tmp_path / "r.json",
        on_prompt=lambda *a: seen.append(a),
        on_point=lambda p, n: done.append((p.name, n)),
    )
    assert sweep.finished
    assert done == [("one a pass", 1), ("threshold 0.5", 2), ("threshold 0.9", 3)]
    assert seen[:2] == [("one a pass", 1, 9), ("one a pass", 2, 9)]
    quota, low, high = sweep.points
    assert (quota.correct, low.correct, high.correct) == (9, 7, 9)
    assert low.marks == "111111100"
    assert low.tasks == {
        "sum": {"prompts": 7, "correct": 7, "forward_passes": 3.0},
        "word": {"prompts": 2, "correct": 0, "forward_passes": 3.0},
    }
    assert low.accuracy == 7 / 9
    assert (quota.forward_passes, quota.rows_run, high.forward_passes) == (24, 240, 3)
    assert quota.seconds == pytest.approx(9 * 0.24)
    assert (quota.ms_per_prompt, quota.ms_per_pass) == (pytest.approx(240), pytest.approx(10))
    assert high.useful_tokens_per_s == pytest.approx(2 / 0.03)
    assert high.canvas_tokens_per_s == pytest.approx(24 / 0.03)
    assert (low.ended_by_eos, low.with_masks_left, low.useful_length) == (7 / 9, 2 / 9, 2)
    assert low.finish_reasons == {"eos": 7, "masks_left": 2}
    assert low.options["threshold"] == 0.5
    assert [asdict(p) for p in read(tmp_path / "r.json").points] == json.loads(
        json.dumps([asdict(p) for p in sweep.points])
    )


def test_prompts_together_are_noted_and_shared(grid, tmp_path):
    alone = sweep_with(Stub(), grid, tmp_path / "a.json").points[0]
    sweep = sweep_with(Stub(), grid, tmp_path / "b.json", together=4)
    point = sweep.points[0]
    assert "4 prompts" in sweep.notes[0]
    for key in ("forward_passes", "rows_run", "ms_per_prompt", "accuracy", "marks"):
        assert getattr(point, key) == pytest.approx(getattr(alone, key)), key
    assert point.ms_per_pass == pytest.approx((4 + 4 + 1) / 3 * alone.ms_per_pass)


def test_an_interrupted_sweep_goes_on_and_repeats_nothing(grid, tmp_path):
    out, whole = tmp_path / "r.json", tmp_path / "whole.json"
    calls = 1 + len(TASKS)  # one untimed, then each
    with pytest.raises(KeyboardInterrupt):
        sweep_with(Stub(stop_after=calls + 4), grid, out)
    assert [p.name for p in read(out).points] == ["one a pass"]
    stub = Stub()
    told = []
    sweep = sweep_with(stub, grid, out, on_point=lambda p, n: told.append((p.name, n)))
    assert stub.asked == 2 * calls
    assert told == [("threshold 0.5", 2), ("threshold 0.9", 3)]
    assert [p.name for p in sweep.points] == ["one a pass", "threshold 0.5", "threshold 0.9"]
    sweep_with(Stub(), grid, whole)
    assert out.read_text() == whole.read_text()
    assert not list(tmp_path.glob(".*.part"))
    idle = Stub()
    sweep_with(idle, grid, out)
    assert idle.asked == 0


def test_another_grid_other_tasks_or_another_machine_do_not_go_on(grid, tmp_path):
    out = tmp_path / "r.json"
    sweep_with(Stub(), grid, out)
    before = out.read_text()
    with pytest.raises(UsageError, match="begun with other tasks"):
        sweep_with(Stub(), grid, out, tasks=TASKS[1:])
    with pytest.raises(UsageError, match="begun with other grid"):
        sweep_with(Stub(), Grid("mine", grid.settings[:2]), out)
    with pytest.raises(UsageError, match="begun with together 1, this run has 2"):
        sweep_with(Stub(), grid, out, together=2)
    other = Stub()
    other.model = SimpleNamespace(scheme="qd8-f32-qc8w", facts=Stub.model.facts)
    with pytest.raises(UsageError, match="begun with scheme 'f32', this run has 'qd8-f32-qc8w'"):
        sweep_with(other, grid, out)
    (tmp_path / "config.json").write_text("{}")  # the folder of the model: other weights
    with pytest.raises(UsageError, match="begun with weights"):
        sweep_with(Stub(), grid, out)
    assert out.read_text() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "sweep", "schema": 1, "grid": 3}', '{"kind": "other"}'])
def test_a_file_that_is_no_result_is_left_alone(grid, tmp_path, text):
    out = tmp_path / "notes.json"
    out.write_text(text)
    stub = Stub()
    with pytest.raises(UsageError, match="no result of a sweep"):
        sweep_with(stub, grid, out)
    assert out.read_text() == text
    assert stub.asked == 0


def test_prompts_must_fit_and_need_a_tokenizer(grid, tmp_path):
    long = [Task("a", "x" * 41, "y")]
    with pytest.raises(UsageError, match=r"\(41 tokens\).*'one a pass' \(24\) make 65, the model's limit is 64"):
        sweep_with(Stub(), grid, tmp_path / "r.json", tasks=long)
    mute = Stub()
    mute.tokenizer = None
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        sweep_with(mute, grid, tmp_path / "r.json")


# ---- what is read from points ----


def point(name: str, accuracy: float, passes: float, ms: float = 1.0, group: str = "g") -> Point:
    """Of ten prompts, the first ones right: five of kind a, five of kind b."""
    correct = round(10 * accuracy)
    marks = "1" * correct + "0" * (10 - correct)
    kinds = {k: {"prompts": 5, "correct": m.count("1")} for k, m in (("a", marks[:5]), ("b", marks[5:]))}
    measured = dict.fromkeys(Point.__dataclass_fields__, 0.0)
    given = {"options": {}, "prompts": 10, "correct": correct, "tasks": kinds, "marks": marks, "finish_reasons": {}}
    costs = {"forward_passes": passes, "ms_per_prompt": ms}
    return Point(**{**measured, **given, **costs, "name": name, "group": group, "accuracy": accuracy})


def test_the_pareto_front_on_hand_made_points():
    points = [point("a", 0.5, 4), point("b", 0.5, 2), point("c", 0.9, 8), point("d", 0.7, 8), point("e", 0.4, 1)]
    assert [p.name for p in analysis.pareto(points, analysis.passes)] == ["e", "b", "c"]
    assert analysis.pareto([], analysis.passes) == []
    twins = [point("x", 0.5, 2), point("y", 0.5, 2)]
    assert [p.name for p in analysis.pareto(twins, analysis.passes)] == ["x"]


def test_changes_count_what_is_gained_and_lost():
    base, other = point("a", 0.6, 12, 6.0), point("b", 0.5, 4, 1.5)
    other = replace(other, marks="1111000001")
    found = analysis.change(other, base)
    assert (found.gained, found.lost, found.passes, found.time) == (1, 2, 3, 4)
    assert found.accuracy == pytest.approx(-0.1)
    assert not found.kept
    assert analysis.change(replace(base, accuracy=0.59), base).kept
    assert not analysis.change(replace(base, accuracy=0.585), base).kept


def test_the_knee_is_the_last_point_before_accuracy_is_lost():
    curve = [point("4", 0.9, 2), point("1", 0.9, 8), point("2", 0.9, 4), point("8", 0.6, 1)]
    found = analysis.knee(curve)
    assert (found.first.name, found.last_kept.name, found.first_lost.name) == ("1", "4", "8")
    assert analysis.knee(curve[:3]).first_lost is None
    assert analysis.hurt(curve[3], curve[1]) == [("b", pytest.approx(-0.6)), ("a", 0)]


def test_the_baseline_is_the_reference_or_the_most_passes():
    points = [point("few", 0.5, 1), point("many", 0.5, 9), point("reference", 0.4, 8)]
    sweep = Sweep({}, {"settings": []}, {}, [], points)
    assert analysis.baseline(sweep).name == "reference"
    assert analysis.baseline(replace(sweep, points=points[:2])).name == "many"


# ---- showing ----


@pytest.fixture
def shown() -> Sweep:
    points = [point("reference", 0.9, 24, 9.0, "strategies"), point("fast|er", 0.8, 4, 2.0), point("bad", 0.1, 6, 3.0)]
    environment = {"model": "m", "backend": "b", "isa": "i", "scheme": "s", "threads": 1}
    return Sweep({"prompts": 10}, {"settings": ["reference", "fast|er", "bad"]}, environment, [], points)


def test_tables(shown):
    lines = table.markdown(table.COLUMNS, table.rows(shown)).splitlines()
    assert lines[1].count("---:") == len(table.COLUMNS) - 1
    assert lines[2].startswith("| reference * | 90.0% | 24.0 |")
    assert lines[3].startswith("| fast\\|er * | 80.0% | 4.0 |")
    assert lines[4].startswith("| bad | 10.0% | 6.0 |")


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_plots(shown, tmp_path, ending):
    path = tmp_path / f"curve.{ending}"
    plot.draw(shown, path)
    data = path.read_bytes()
    assert data.startswith(b"<?xml" if ending == "svg" else b"\x89PNG")
    if ending == "svg":
        text = data.decode()
        assert text.count(">reference<") == text.count(">fast|er<") == text.count(">bad<") == 2  # once a panel
        assert "forward passes per prompt" in text
        assert "milliseconds per prompt" in text
        plot.draw(shown, tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == data


def test_plots_that_cannot_be_drawn(shown, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"must end|--plot is"):
        plot.check(tmp_path / "curve.jpg")
    with pytest.raises(UsageError, match="no point"):
        plot.draw(replace(shown, points=[]), tmp_path / "curve.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        plot.check(tmp_path / "curve.svg")
    assert caught.value.hint == 'pip install "dllm[plot]"'
    assert caught.value.exit_code == 2


def test_saving_names_what_cannot_be_written(shown, tmp_path):
    with pytest.raises(NotFoundError, match="cannot write"):
        save(shown, tmp_path / "nowhere" / "r.json")
