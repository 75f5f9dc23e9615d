"""Tests of what decides over speed and of what shows it, on recorded and made-up results; nothing here is timed.

python -m unittest benchmarks.tests
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import asv_tables, continuous, performance_tables
from benchmarks.continuous import Samples, judge
from benchmarks.record import quartiles

RECORDED = Path(__file__).parent / "recorded"  # asv's results of a kernel slowed on purpose
BASE, SLOW = "95d78e0d", "27b04817"
STEADY = (1.00, 1.01, 1.02, 1.03)


def names(base: Samples, head: Samples, factor: float = 1.2) -> list[str]:
    return [f"{change.what} {change.name}" for change in judge(base, head, factor)]


class TestJudge:
    def test_slower_is_named_worst_first(self) -> None:
        base: Samples = {"a.time": STEADY, "b.time": STEADY, "c.time": STEADY}
        head: Samples = {"a.time": (1.3, 1.31, 1.32, 1.33), "b.time": STEADY, "c.time": (2.0, 2.1, 2.2, 2.3)}
        assert names(base, head) == ["slower c.time", "slower a.time"]

    def test_below_the_factor_is_no_change(self) -> None:
        slightly = tuple(1.19 * s for s in STEADY)
        assert names({"a.time": STEADY}, {"a.time": slightly}) == []
        assert names({"a.time": STEADY}, {"a.time": slightly}, 1.1) == ["slower a.time"]

    def test_faster_is_no_change(self) -> None:
        assert names({"a.time": STEADY}, {"a.time": (0.1, 0.1, 0.1, 0.1)}) == []

    def test_samples_that_overlap_say_nothing(self) -> None:
        noisy = (0.9, 1.0, 1.0, 2.0, 2.0, 2.1)  # a machine busy half of the time: a quarter of HEAD is as fast as BASE
        assert names({"a.time": (0.9, 1.0, 1.0, 1.0, 2.0, 2.0)}, {"a.time": noisy}) == []

    def test_single_values_need_the_factor_alone(self) -> None:
        assert names({"x.track_error": (0.01,)}, {"x.track_error": (0.02,)}) == ["larger x.track_error"]
        assert names({"x.track_error": (0.0,)}, {"x.track_error": (0.1,)}) == ["larger x.track_error"]
        assert names({"x.track_error": (0.0,)}, {"x.track_error": (0.0,)}) == []

    def test_failures_and_losses_count_new_ones_and_old_faults_do_not(self) -> None:
        base: Samples = {"a.time": STEADY, "b.time": STEADY, "c.time": None}
        head: Samples = {"a.time": None, "c.time": None, "d.time": None}
        assert sorted(names(base, head)) == ["fails a.time", "gone b.time"]


class TestRecorded:
    """Two commits measured by asv, of which the second computes the products of one kernel twice."""

    def test_the_slowed_kernel_and_nothing_else_is_named(self) -> None:
        base, slow = (continuous.read(RECORDED, commit) for commit in (BASE, SLOW))
        found = judge(base, slow, 1.2)
        assert {c.what for c in found} == {"slower"}
        kernel = "quick.QuickKernel.time_linear('avx512vnni', 'qd8-f32-qc8w', 64)"
        assert kernel in [c.name for c in found]
        assert [c.name for c in found if "qb8w" in c.name or "f32'" in c.name] == []

    def test_the_other_way_round_nothing_is_slower(self) -> None:
        assert judge(continuous.read(RECORDED, SLOW), continuous.read(RECORDED, BASE), 1.2) == []

    def test_skipped_benchmarks_are_absent(self) -> None:
        assert "quick.QuickKernel.time_linear('avxvnni', 'f32', 4)" not in continuous.read(RECORDED, BASE)

    def test_a_commit_that_was_not_measured_has_no_samples(self) -> None:
        assert continuous.read(RECORDED, "00000000") == {}


class TestExitCode:
    def run_main(self, *arguments: str, stages: dict[str, Any] | None = None) -> tuple[int, str]:
        """(exit code, output) with the results that each stage would measure."""

        def measure(stage: str, *rest: Any) -> tuple[Samples, Samples]:
            return (stages or {})[stage]

        text = io.StringIO()
        with (
            mock.patch.object(continuous, "measure", measure),
            mock.patch("sys.argv", ["continuous.py", *arguments]),
            redirect_stdout(text),
            redirect_stderr(text),
        ):
            try:
                return continuous.main(), text.getvalue()
            except SystemExit as end:
                return int(end.code or 0), text.getvalue()

    def test_slower_twice_is_1_and_named(self) -> None:
        slow = {"a.time": STEADY}, {"a.time": (2.0, 2.1, 2.2)}
        code, text = self.run_main("HEAD", "HEAD", stages={"first": slow, "again": slow})
        assert code == 1
        assert re.search(r"\nslower 2\.\d\dx: a\.time", text)

    def test_slower_once_is_0(self) -> None:
        slow = {"a.time": STEADY}, {"a.time": (2.0, 2.1, 2.2)}
        steady = {"a.time": STEADY}, {"a.time": STEADY}
        code, text = self.run_main("HEAD", "HEAD", stages={"first": slow, "again": steady})
        assert code == 0
        assert "nothing is slower" in text

    def test_what_was_not_suspected_at_first_does_not_count(self) -> None:
        first = {"a.time": STEADY, "b.time": STEADY}, {"a.time": (2.0, 2.1, 2.2), "b.time": STEADY}
        again = {"a.time": STEADY, "b.time": STEADY}, {"a.time": STEADY, "b.time": None}
        assert self.run_main("HEAD", "HEAD", stages={"first": first, "again": again})[0] == 0

    def test_steady_is_0_without_a_second_stage(self) -> None:
        steady = {"a.time": STEADY}, {"a.time": STEADY}
        assert self.run_main("HEAD", "HEAD", stages={"first": steady})[0] == 0

    def test_usage_is_2(self) -> None:
        for arguments in (["no-such-commit"], ["HEAD", "HEAD", "--factor", "1"], ["--rounds", "0"], ["--what"]):
            code, text = self.run_main(*arguments)
            assert code == 2, arguments
            assert "error: " in text

    def test_a_commit_that_does_not_build_is_2(self) -> None:
        def measured(folder: Path, commit: str) -> Samples:
            return {"a.time": None}

        text = io.StringIO()
        with (
            mock.patch.object(continuous, "read", measured),
            mock.patch.object(continuous.subprocess, "run", return_value=mock.Mock(returncode=2)),
            mock.patch.object(continuous, "commit", return_value="0" * 40),
            mock.patch("sys.argv", ["continuous.py", "HEAD", "HEAD"]),
            redirect_stdout(io.StringIO()),
            redirect_stderr(text),
        ):
            assert continuous.main() == 2
        assert "does not build" in text.getvalue()


class TestSuite:
    """The lists of the suite are written out; nothing that the package has may be missing from them."""

    def test_schemes_backends_instruction_sets_and_strategies_are_listed(self) -> None:
        from dllm_cffi.rows import all_rows

        from benchmarks.suite import common, inside
        from dllm_core.decoding.strategies import STRATEGIES
        from dllm_core.quant import SCHEMES

        assert set(SCHEMES) - set(common.SCHEMES) == set()
        assert set(all_rows()) - set(common.ISAS) == set()
        assert set(STRATEGIES) - set(inside.STRATEGIES) == set()
        assert {"numpy", "numba-int8", "cffi-simd"} - set(common.BACKENDS) == set()

    def test_the_environment_of_asv_has_every_dependency(self) -> None:
        conf = json.loads((continuous.ROOT / "asv.conf.json").read_text())
        project = tomllib.loads((continuous.ROOT / "pyproject.toml").read_text())["project"]
        needed = {re.match(r"[\w-]+", dependency)[0] for dependency in project["dependencies"]}
        assert needed - set(conf["matrix"]["req"]) == set()


class TestTables:
    """Every column of a table finds its figure in what the script that measures it writes."""

    def test_whole_processes(self) -> None:
        row = {"command": "dllm run", "rounds": 3, **quartiles("s", [0.1, 0.2, 0.4])}
        assert self.render("process", [row])[-1] == "| `dllm run` | 0.200 (0.150-0.300) |"

    def test_neighbours(self) -> None:
        times = quartiles("alone_ms", [1.0]) | quartiles("beside_ms", [2.0])
        row = {"what": "linear", "scheme": "f32", "threads": 2, **times, "beside_to_one_thread": 0.5}
        assert self.render("neighbour", [row])[-1] == "| linear | 2 | 1.00 (1.00-1.00) | 2.00 (2.00-2.00) | 50 % |"

    def test_packed_files(self) -> None:
        row: dict[str, Any] = {"model": "8b", "scheme": "f32", "file_bytes": 8e9, "peak_rss_bytes": 7.7e9}
        row |= {"weight_bytes": 7.5e9, "beyond_weights": 0.027}
        for stage in ("imports_s", "open_s", "first_s"):
            row |= quartiles(stage, [0.5])
        assert self.render("packed", [row])[-1].endswith("| 7.70 GB | 7.50 GB | 2.7 % |")

    def test_asv(self) -> None:
        columns = ["result", "params"]
        params = [["'int8 128'", "'int4 128'"], ["1", "2"]]
        found = {
            "date": 1,
            "commit_hash": "0123456789",
            "params": {"cpu": "CPU", "num_cpu": "2", "ram": "24 GB"},
            "result_columns": columns,
            "results": {"kernels.Missed.track_missed": [[5.0, 6.0, float("nan"), float("nan")], params]},
        }
        with mock.patch.object(asv_tables, "newest", return_value=found):
            lines = asv_tables.missed().splitlines()
        assert lines[2:] == ["| int8 128 | 5.0 % | 6.0 % |", "", "CPU, 2 CPUs, 24 GB, commit 01234567."]

    def render(self, kind: str, rows: list[dict[str, Any]]) -> list[str]:
        with mock.patch.object(performance_tables, "results", return_value=rows):
            return performance_tables.TABLES[f"bench_{kind}"]().splitlines()


def test_wrong_arguments_are_refused_before_anything_is_built() -> None:
    for words in (["--factor", "1"], ["--factor", "nan"], ["--rounds", "0"], ["--bench", "("]):
        said = io.StringIO()
        with mock.patch("sys.argv", ["continuous.py", *words]), mock.patch.object(continuous, "compare") as compare:
            try:
                with redirect_stderr(said):
                    continuous.main()
                code: object = 0
            except SystemExit as stop:
                code = stop.code
        assert (code, compare.called) == (2, False), words
        assert words[0] in said.getvalue()


def test_the_scripts_import() -> None:
    for name in ("cache_ratio", "neighbour", "packed_open", "processes"):
        assert callable(import_module(f"benchmarks.{name}").main)
