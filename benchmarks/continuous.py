#!/usr/bin/env python3
"""Did a change make anything slower? Builds two commits, times them in turn, and names what slowed down.

    benchmarks/continuous.py                the branch point of main against HEAD
    benchmarks/continuous.py BASE HEAD      two commits of this repository
    benchmarks/continuous.py --bench 'quick|kernels.Linear' --factor 1.1

Exit code 0: nothing is slower. 1: something is, or fails or is gone; it is named. 2: usage, or a commit that does not
build. Runs `asv continuous` in interleaved rounds, so that a busy minute of the machine hits both commits. Slower: the
median grew by more than the factor, and three quarters of HEAD's samples lie above three quarters of BASE's. What looks
slower is measured a second time, in twice the rounds, and counts only if it is slower again.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".asv" / "continuous"
Samples = dict[str, tuple[float, ...] | None]  # by benchmark and parameters; None: it failed. Skipped ones are absent


@dataclass(frozen=True)
class Change:
    """A benchmark that got worse."""

    name: str
    what: str  # "slower", "larger", "fails" or "gone"
    base: float
    head: float | None = None

    def __str__(self) -> str:
        if self.head is None:
            return f"{self.what}: {self.name}"
        ratio = self.head / self.base if self.base else float("inf")
        return f"{self.what} {ratio:.2f}x: {self.name}  {self.base:.4g} -> {self.head:.4g}"


def judge(base: Samples, head: Samples, factor: float) -> list[Change]:
    """What is worse at `head`, the worst first. Pure: all that decides is in the samples."""
    found = []
    for name, before in base.items():
        if before is None:
            continue
        middle = statistics.median(before)
        if name not in head:
            found.append(Change(name, "gone", middle))
            continue
        after = head[name]
        if after is None:
            found.append(Change(name, "fails", middle))
        elif statistics.median(after) > factor * middle and _quartiles(after)[0] > _quartiles(before)[1]:
            what = "slower" if ".time" in name else "larger"
            found.append(Change(name, what, middle, statistics.median(after)))
    return sorted(found, key=lambda c: -(c.head / c.base if c.head and c.base else float("inf")))


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return quarters[0], quarters[2]


def read(folder: Path, commit: str) -> Samples:
    """The samples of a commit in a folder of asv results: {} where it was not measured."""
    from asv.commands.compare import unroll_result
    from asv.results import Results

    found: Samples = {}
    for path in folder.glob(f"*/{commit[:8]}-*.json"):
        results = Results.load(str(path))
        for key in results.get_all_result_keys():
            params = results.get_result_params(key)
            columns = results.get_result_value(key, params), results.get_result_samples(key, params)
            for name, value, samples in unroll_result(key, params, *columns):
                if value is None or value == value:  # not a number: skipped
                    found[name] = None if value is None else tuple(samples or [value])
    return found


# ---- running asv ----


class Trouble(Exception):
    """Nothing can be said about speed: exit code 2."""


@contextmanager
def configuration(results: Path) -> Iterator[Path]:
    """asv.conf.json with results of its own: those that are committed stay as they are. asv runs in its folder."""
    settings = json.loads((ROOT / "asv.conf.json").read_text())
    settings["results_dir"] = str(results)
    shutil.rmtree(results, ignore_errors=True)
    with NamedTemporaryFile("w", dir=ROOT, prefix=".asv-continuous-", suffix=".json") as file:
        json.dump(settings, file)
        file.flush()
        yield Path(file.name)


def measure(stage: str, base: str, head: str, bench: str, rounds: int, factor: float) -> tuple[Samples, Samples]:
    """Both commits in interleaved rounds. Trouble unless something could be measured at each."""
    results = RESULTS / stage
    asv = [sys.executable, "-m", "asv"]
    _introduce_machine(asv)
    with configuration(results) as path:
        how = ["--interleave-rounds", "--record-samples", "--attribute", f"rounds={rounds}"]
        what = ["--factor", str(factor), "--split", "--bench", bench, base, head]
        code = subprocess.run([*asv, "--config", str(path), "continuous", *how, *what], cwd=ROOT).returncode
    found = read(results, base), read(results, head)
    for commit, samples in zip((base, head), found, strict=True):
        if not any(samples.values()):
            raise Trouble(f"nothing was measured at {commit[:8]} (asv: {code}): it does not build, or does not run")
    return found


def _introduce_machine(asv: Sequence[str]) -> None:
    """asv refuses machines that it has not been told of."""
    from asv.machine import MachineCollection
    from asv.util import UserError

    try:
        MachineCollection.load(platform.node())
    except UserError:
        subprocess.run([*asv, "machine", "--yes"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Trouble(done.stderr.strip() or f"git {' '.join(arguments)} failed")
    return done.stdout.strip()


def commit(name: str) -> str:
    try:
        return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except Trouble:
        raise Trouble(f"{name!r} names no commit of this repository") from None


def branch_point(head: str) -> str:
    """Where `head` left main; its parent if it is on main itself."""
    base = git("merge-base", "main", head)
    return commit(f"{head}^") if base == head else base


def compare(args: argparse.Namespace) -> list[Change]:
    head = commit(args.head)
    base = commit(args.base) if args.base else branch_point(head)
    print(f"{base[:8]} against {head[:8]}", flush=True)
    worse = judge(*measure("first", base, head, args.bench, args.rounds, args.factor), args.factor)
    if not worse:
        return []
    print("\nmeasured again:", *worse, sep="\n  ", flush=True)
    names = {change.name for change in worse}
    again = "^(" + "|".join(re.escape(name) for name in sorted(names)) + ")$"
    second = measure("again", base, head, again, 2 * args.rounds, args.factor)
    return [change for change in judge(*second, args.factor) if change.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit code: 0 nothing is slower, 1 something is, 2 trouble."
    )
    parser.add_argument("base", nargs="?", help="a commit; where HEAD left main if not given")
    parser.add_argument("head", nargs="?", default="HEAD", help="a commit (default HEAD)")
    parser.add_argument("--factor", type=float, default=1.2, help="how much slower is slower (default 1.2)")
    parser.add_argument("--rounds", type=int, default=4, help="interleaved rounds (default 4)")
    parser.add_argument("--bench", default="^quick", help="regular expression of benchmarks (default ^quick)")
    args = parser.parse_args()
    if not 1 < args.factor < math.inf or args.rounds < 1:
        parser.error("--factor must be above 1, --rounds at least 1")
    try:
        re.compile(args.bench)
    except re.error as error:
        parser.error(f"--bench {args.bench!r} is no regular expression: {error}")
    try:
        worse = compare(args)
    except (Trouble, subprocess.CalledProcessError) as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 2
    print("", *worse, "" if worse else "nothing is slower", sep="\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
