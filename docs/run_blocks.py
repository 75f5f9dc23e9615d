"""Run the code blocks of the guide, every page from top to bottom.

python docs/run_blocks.py [PAGE.md ...]   every page of docs/ if none is named; cli.md is checked by make_cli.py
python docs/run_blocks.py --list [...]    say what would run and what would not

Every page has an empty folder, and an environment that sees what this interpreter sees; what a page installs is gone
with it. `sh` and `python` blocks run. What is printed by both streams is compared where a page shows it. On the lines
right before a fence a page may say, as HTML comments, which readers do not see:

    ```sh                       bash -euo pipefail; the folder and exported variables last to the next block
    ```python                   one interpreter a page: names last to the next block
    <!-- not run: REASON -->    before either: it is listed and left out
    <!-- exit: N -->            before a sh block: it ends with this code
    <!-- first: COMMAND -->     before any block: what readers have done already, such as a clone; $DLLM_SOURCE is
                                the repository
    <!-- file: PATH -->         before any block: it is written to PATH, seen from the folder where the shell stands
    <!-- source: PATH -->       before any block: these lines stand in this file of the repository, as they are
    <!-- output -->             before a text block: what the last block printed; ... stands for anything in a line, and
                                alone in a line for any lines
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).resolve().parent
NOT_HERE = {"cli.md"}
SECONDS = 300  # a block that takes longer hangs
MARKER = re.compile(r"<!-- (not run|exit|first|file|source|output)(?:: (.+?))? -->")

SHELL = """set -euo pipefail
[ ! -e "$DLLM_STATE/env" ] || . "$DLLM_STATE/env"
cd "$(cat "$DLLM_STATE/folder")"
trap 'pwd > "$DLLM_STATE/folder"; export -p > "$DLLM_STATE/env"' EXIT
"""

# Reads {"folder", "name", "code"} line by line and answers {"output", "failed"}.
INTERPRETER = """
import contextlib, io, json, linecache, os, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    block, out, failed = json.loads(line), io.StringIO(), False
    os.chdir(block["folder"])
    linecache.cache[block["name"]] = (len(block["code"]), None, block["code"].splitlines(True), block["name"])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            exec(compile(block["code"], block["name"], "exec"), names)
        except BaseException:
            failed = True
            traceback.print_exc()
    print(json.dumps({"output": out.getvalue(), "failed": failed}), flush=True)
"""


class Wrong(Exception):
    """A block does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its fence, counted from 1; `marks` are the comments before it."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def runs(self) -> bool:
        return self.language in ("sh", "python") and not {"not run", "file"} & set(self.marks)

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    marks: dict[str, str] = {}
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    for number, line in lines:
        fence = re.match(r"( *)(`{3,})([\w-]*)", line)
        if fence:
            inside = []
            for _, text in lines:
                if text.strip() == fence[2]:
                    break
                inside.append(text.removeprefix(fence[1]))
            yield Block(page, number, fence[3], "".join(f"{text}\n" for text in inside), marks)
            marks = {}
        elif mark := MARKER.fullmatch(line.strip()):
            marks[mark[1]] = mark[2] or ""
        elif line.strip():
            marks = {}


@dataclass
class Session:
    """The shell and the interpreter of one page."""

    folder: Path
    last: str = ""  # what the last block printed
    interpreter: subprocess.Popen[str] | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        python = overlay(self.folder / "environment")
        (self.folder / "page").mkdir()
        (self.folder / "state").mkdir()
        (self.folder / "state" / "folder").write_text(str(self.folder / "page"))
        self.variables = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("DLLM_", "PYTHON"))},
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(python.parent.parent),
            "DLLM_SOURCE": str(DOCS.parent),
            "DLLM_STATE": str(self.folder / "state"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "PIP_QUIET": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    @property
    def here(self) -> Path:
        return Path((self.folder / "state" / "folder").read_text().strip())

    def run(self, block: Block) -> None:
        """Do what the block is for; Wrong if that goes wrong."""
        if "source" in block.marks and block.text not in (DOCS.parent / block.marks["source"]).read_text("utf-8"):
            raise Wrong(f"these lines do not stand in {block.marks['source']}")
        if "not run" in block.marks:
            return
        if "first" in block.marks:
            self.shell(block.marks["first"])
        if "file" in block.marks:
            path = self.here / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif "output" in block.marks:
            compare(block.text, self.last)
        elif block.language == "sh":
            self.shell(block.text, int(block.marks.get("exit", "0")))
        elif block.language == "python":
            self.python(block)

    def shell(self, commands: str, wanted: int = 0) -> None:
        command = subprocess.Popen(
            ["bash", "-c", SHELL + commands],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,  # so that what it started ends with it
        )
        try:
            self.last = command.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            raise Wrong(f"it took more than {SECONDS} seconds") from None
        finally:
            if command.returncode is None:
                os.killpg(command.pid, signal.SIGKILL)
                command.wait()
        if command.returncode != wanted:
            raise Wrong(f"it ended with code {command.returncode}, not {wanted}\n{self.last}")

    def python(self, block: Block) -> None:
        if self.interpreter is None:
            self.interpreter = subprocess.Popen(
                ["python", "-c", INTERPRETER],
                env=self.variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
        assert self.interpreter.stdin is not None
        assert self.interpreter.stdout is not None
        job = {"folder": str(self.here), "name": str(block), "code": block.text}
        self.interpreter.stdin.write(json.dumps(job) + "\n")
        self.interpreter.stdin.flush()
        answer = self.interpreter.stdout.readline()
        if not answer:
            raise Wrong("the interpreter died")
        self.last = json.loads(answer)["output"]
        if json.loads(answer)["failed"]:
            raise Wrong(self.last)

    def close(self) -> None:
        if self.interpreter is not None:
            assert self.interpreter.stdin is not None
            self.interpreter.stdin.close()
            self.interpreter.wait(SECONDS)


def overlay(folder: Path) -> Path:
    """A virtual environment over this interpreter's: it sees its packages and commands, and is written to instead.
    Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    parent = sysconfig.get_path("purelib")
    (site / "parent.pth").write_text(f"import site; site.addsitedir({parent!r})\n")
    for script in Path(sysconfig.get_path("scripts")).iterdir():
        if script.is_symlink() or (folder / "bin" / script.name).exists() or not script.is_file():
            continue
        head, _, body = script.read_bytes().partition(b"\n")
        if head.startswith(b"#!") and b"python" in head:
            (folder / "bin" / script.name).write_bytes(f"#!{python}\n".encode() + body)
            (folder / "bin" / script.name).chmod(0o755)
    return python


def compare(expected: str, found: str) -> None:
    """Wrong, with the differing lines, unless the output is the expected one."""
    wanted = [line.rstrip() for line in expected.strip("\n").splitlines()]
    got = [line.rstrip() for line in found.strip("\n").splitlines()]
    pattern = ""
    for line in wanted:
        inside = r"[^\n]*".join(re.escape(part) for part in line.split("..."))
        pattern += r"(?:[^\n]*\n)*?" if line == "..." else inside + r"\n"
    if not re.fullmatch(pattern, "".join(f"{line}\n" for line in got)):
        raise Wrong("\n".join(["the output is another one", *difflib.ndiff(wanted, got)]))


def run_page(page: Path) -> tuple[str, bool]:
    """What happened, and whether all went well."""
    found, began = list(blocks(page)), time.perf_counter()
    if not any(block.runs or "source" in block.marks for block in found):
        return list_page(page)
    with tempfile.TemporaryDirectory(prefix="dllm-docs-") as folder:
        session = Session(Path(folder))
        try:
            for block in found:
                session.run(block)
        except (Wrong, OSError, ValueError) as error:
            return f"{block}: {error}\n", False
        finally:
            session.close()
    return summary(page, found, f"ran in {time.perf_counter() - began:.0f} s"), True


def list_page(page: Path) -> tuple[str, bool]:
    return summary(page, list(blocks(page)), "to run"), True


def summary(page: Path, found: list[Block], verb: str) -> str:
    """Nothing for a page without commands."""
    count, left_out = sum(block.runs for block in found), [block for block in found if "not run" in block.marks]
    lines = [f"{page.name}: {count} blocks {verb}"] if count else []
    lines += [f"  not run: {block}: {block.marks['not run']}" for block in left_out]
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--list", action="store_true", dest="only_list")
    given = parser.parse_args()
    for page in given.pages:
        if not page.is_file():
            parser.error(f"no page {page}")
    pages = (
        given.pages or sorted(page for page in DOCS.glob("*.md") if page.name not in NOT_HERE)[::-1]
    )  # long ones first
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(list_page if given.only_list else run_page, [page.resolve() for page in pages]))
    for text, good in reports:
        print(text, file=sys.stdout if good else sys.stderr, end="", flush=True)
    return int(not all(good for _, good in reports))


if __name__ == "__main__":
    sys.exit(main())
