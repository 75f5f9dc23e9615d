"""--trace and `dllm trace`: the file says what happened, the page holds all of it and nothing that it should not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dllm_core import load
from dllm_core.trace import TraceWriter, read_trace

from .conftest import Result, assert_refused

Dllm = Callable[..., Result]
RUN = ["--prompt-ids", "5,6,7", "-n", 12, "--strategy", "careful", "--eos", "keep"]
HOSTILE = ["</script><script>alert(1)</script>", "<!--<script>", "&lt;", "\u2028", "\x00", "\ud800", "\u202e'\"\\"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- writing ----


def test_the_file_says_what_happened(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    answer = dllm("run", "-m", folder, *RUN, "--trace", out, "--json").json
    header, *steps = lines_of(out)
    engine = load(str(folder), backend="numpy")
    options = engine.options("careful", max_tokens=12, eos="keep")
    expected = list(engine.stream([[5, 6, 7]], options))
    assert header["trace"] == 1
    assert (header["model"], header["backend"], header["scheme"]) == (str(folder), "numpy", "f32")
    assert header["canvas"] == [5, 6, 7, *[130] * 12]
    assert (header["mask_id"], header["end_ids"]) == (130, [129])
    assert header["options"]["threshold"] == 0.7
    assert len(steps) == len(expected) == answer["steps"]
    assert any(step["revoked"] for step in steps)
    for found, step in zip(steps, expected, strict=True):
        assert (found["index"], found["block"], found["rows_run"]) == (step.index, step.block, step.rows_run)
        assert found["canvas"] == step.canvas[0].tolist()
        assert [c["position"] for c in found["commits"]] == step.position.tolist()
        assert [c["token"] for c in found["commits"]] == step.token.tolist()
        np.testing.assert_allclose([c["confidence"] for c in found["commits"]], step.confidence, rtol=1e-5)
        assert found["revoked"] == step.revoked[0].tolist()
        assert found["ms"] >= 0
        assert found["finished"] is None
    assert steps[-1]["canvas"] == answer["tokens"]
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_texts_stand_where_a_token_is_first_seen(dllm: Dllm, spoken: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    dllm("run", "-m", spoken, "hi", "-n", 12, "--trace", out)
    known: dict[int, str] = {}
    tokenizer = load(str(spoken), backend="numpy").tokenizer
    assert tokenizer is not None
    for line in lines_of(out):
        assert not set(map(int, line["texts"])) & set(known)
        known |= {int(i): text for i, text in line["texts"].items()}
        assert set(line["canvas"]) <= set(known)
    assert known == {i: tokenizer.token_text(i) for i in known}


def test_confidence_that_json_cannot_hold(folder: Path, tmp_path: Path) -> None:
    engine = load(str(folder), backend="numpy")
    options = engine.options(max_tokens=2, block_length=2)
    step = next(engine.stream([[5]], options))
    with TraceWriter(tmp_path / "t.jsonl") as trace:
        trace.begin(engine, options, [5, 130, 130])
        for i, value in enumerate((np.nan, np.inf, -np.inf)):
            object.__setattr__(step, "index", i)
            step.confidence[:] = value
            trace.step(step)
    assert [s.commits[0].confidence for s in read_trace(tmp_path / "t.jsonl").steps] == [None] * 3


def test_a_fill_is_traced_from_its_template(dllm: Dllm, spoken: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    filled = dllm("fill", "-m", spoken, "a[MASK:2]b[MASK]", "--trace", out, "--json").json
    header, *steps = lines_of(out)
    assert header["canvas"] == [65, 98, 98, 66, 98]
    assert steps[-1]["canvas"] == filled["tokens"]
    assert len(steps) == 3


@pytest.mark.parametrize(
    ("path", "code", "word"),
    [("no/such/t.jsonl", 3, "no/such"), (".", 2, "no regular file"), ("file/t.jsonl", 3, "file")],
)
def test_a_place_that_cannot_be_written(
    dllm: Dllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, code: int, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    for verb, words in (("run", ["x"]), ("fill", ["[MASK]"])):  # said before the model is looked for
        assert_refused(dllm(verb, "-m", "/no/such/model", *words, "--trace", path), code, word)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_device_is_not_replaced(dllm: Dllm, tmp_path: Path, folder: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert_refused(dllm("run", "-m", folder, *RUN, "--trace", fifo), 2, "no regular file")
    assert_refused(dllm("logits", "-m", folder, "--prompt-ids", "1", "--out", fifo), 2, "no regular file")
    dllm("run", "-m", folder, *RUN, "--trace", tmp_path / "t.jsonl")
    assert_refused(dllm("trace", tmp_path / "t.jsonl", "--html", fifo), 2, "no regular file")
    assert fifo.is_fifo()


def test_a_run_that_fails_leaves_the_old_trace(
    dllm: Dllm, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.jsonl"
    out.write_text("before")
    assert dllm("run", "-m", folder, "--prompt-ids", "5", "-n", 99999, "--trace", out).code == 2
    assert (out.read_text(), [p.name for p in tmp_path.iterdir()]) == ("before", ["t.jsonl"])
    write = TraceWriter.step

    def two_steps(self: TraceWriter, step: Any) -> None:
        write(self, step)
        if step.index == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(TraceWriter, "step", two_steps)
    assert dllm("run", "-m", folder, *RUN, "--trace", out).code == 130
    assert out.read_text() == "before"
    assert dllm("trace", tmp_path / "t.jsonl.part", "--json").json["steps"] == 2  # what was seen is kept


# ---- reading ----


@pytest.fixture
def trace(dllm: Dllm, spoken: Path, tmp_path: Path) -> Path:
    out = tmp_path / "t.jsonl"
    dllm("run", "-m", spoken, "hi", "-n", 12, "--strategy", "careful", "--eos", "keep", "--trace", out)
    return out


def test_summary(dllm: Dllm, trace: Path) -> None:
    _, *steps = lines_of(trace)
    facts = dllm("trace", trace, "--json").json
    commits = [len(s["commits"]) for s in steps]
    assert (facts["steps"], facts["masks"], facts["commits"]) == (len(steps), 12, sum(commits))
    assert facts["commits_per_step"] == {str(n): commits.count(n) for n in sorted(set(commits))}
    assert facts["revoked"] == sum(len(s["revoked"]) for s in steps)
    assert facts["rows_run"] == sum(s["rows_run"] for s in steps)
    assert facts["ms"] == pytest.approx(sum(s["ms"] for s in steps), abs=0.01)
    text = dict(line.split(None, 1) for line in dllm("trace", trace).out.splitlines())
    assert text["steps"].startswith(f"{len(steps)}, ")
    assert text["commits"].startswith(f"{sum(commits)}, ")


def test_a_trace_without_steps(dllm: Dllm, trace: Path, tmp_path: Path) -> None:
    trace.write_text(trace.read_text().splitlines()[0] + "\n")
    assert dllm("trace", trace).code == 0
    assert dllm("trace", trace, "--json").json["masks_left"] == 12
    assert dllm("trace", trace, "--html", tmp_path / "x.html", "-q") == Result(0, "", "")


def change(line: int, **fields: Any) -> Callable[[list[str]], list[str]]:
    def apply(lines: list[str]) -> list[str]:
        lines[line] = json.dumps({**json.loads(lines[line]), **fields})
        return lines

    return apply


DAMAGE: list[tuple[Callable[[list[str]], list[str]], str]] = [
    (lambda lines: [], "no header"),
    (lambda lines: ["hello"], "no header"),
    (lambda lines: ["[1]"], "no header"),
    (lambda lines: ["[" * 100_000], "no header"),
    (lambda lines: lines[1:], "no header"),
    (change(0, trace=2), "version 2"),
    (change(0, canvas="abc"), "line 1"),
    (change(0, mask_id=-1), "line 1"),
    (change(0, texts={"x": "y"}), "texts"),
    (change(0, options=3), "options"),
    (lambda lines: [*lines[:3], lines[3][:-20]], "line 4 is no step: not JSON"),
    (lambda lines: [*lines[:2], *lines[3:]], "index 2 where 1 is due"),
    (change(2, canvas=[1, 2]), "line 3"),
    (change(2, canvas=[1.5]), "line 3"),
    (change(2, commits=[{"position": 1}]), "token is missing"),
    (change(2, commits=[{"position": 10**6, "token": 1, "confidence": 1}]), "position 1000000"),
    (change(2, commits=[{"position": 1, "token": 1, "confidence": "high"}]), "confidence"),
    (change(2, commits=7), "commits"),
    (change(2, revoked=[-1]), "line 3"),
    (change(2, ms=float("inf")), "ms"),
    (change(2, finished=3), "finished"),
    (change(2, rows_run=None), "line 3"),
    (change(2, texts=[]), "texts"),
    (lambda lines: [*lines, "null"], "not an object"),
    (lambda lines: [*lines, '{"index":' + "9" * 5000 + "}"], "line"),
]


@pytest.mark.parametrize(("damage", "word"), DAMAGE, ids=range(len(DAMAGE)))
def test_damaged_files(dllm: Dllm, trace: Path, tmp_path: Path, damage: Callable[..., list[str]], word: str) -> None:
    trace.write_text("\n".join(damage(trace.read_text().splitlines())))
    for arguments in ([], ["--html", tmp_path / "x.html"]):
        assert_refused(dllm("trace", trace, *arguments), 1, str(trace), word)
    assert not (tmp_path / "x.html").exists()


def test_files_that_are_no_trace(dllm: Dllm, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(os.urandom(4096))
    assert_refused(dllm("trace", tmp_path / "binary"), 1, "no header")
    assert_refused(dllm("trace", tmp_path / "nothing"), 3, "nothing")
    assert_refused(dllm("trace", tmp_path), 2, "no regular file")
    assert_refused(dllm("trace", trace, "--html", "/no/such/place/x.html"), 3, "/no/such/place")
    assert_refused(dllm("trace", trace, "--html", trace), 2, "the trace itself")


# ---- the page ----


class Page(HTMLParser):
    """The elements of a page: (tag, attributes), and the text inside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.title = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, text: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += text
        if self.inside == "title":
            self.title += text


def test_the_page_stands_alone_and_holds_every_step(dllm: Dllm, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.html"
    result = dllm("trace", trace, "--html", out)
    assert (result.code, result.out) == (0, "")
    assert str(out) in result.err
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
    policy = next(
        a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert not {"://", "@import", "url(", "fetch(", "import("} & {
        w for w in ("://", "@import", "url(", "fetch(") if w in text
    }
    header, *steps = lines_of(trace)
    data = json.loads(page.scripts[0])
    canvas = data["canvas"]
    assert canvas == header["canvas"]
    for found, step in zip(data["steps"], steps, strict=True):  # the changes, applied in order, make every canvas
        for position in found["r"]:
            canvas[position] = data["mask"]
        for position, token, _ in found["c"]:
            canvas[position] = token
        for position, token in found["f"]:
            canvas[position] = token
        assert canvas == step["canvas"]
        assert [c[2] for c in found["c"]] == [c["confidence"] for c in step["commits"]]
    texts = {k: v for line in [header, *steps] for k, v in line["texts"].items()}
    assert all(data["texts"][str(token)] == texts[str(token)] for step in steps for token in step["canvas"])


def test_masks_behind_an_end_token_reach_the_page(dllm: Dllm, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run = ["run", "-m", folder, "--prompt-ids", "5", "-n", 30, "--eos", "stop", "--eos-penalty", -20]
    assert dllm(*run, "--trace", out, "--json").json["finish_reason"] == "eos"
    dllm("trace", out, "--html", tmp_path / "t.html")
    data = json.loads(Page((tmp_path / "t.html").read_text()).scripts[0])
    assert data["steps"][-1]["e"] == "eos"
    assert data["steps"][-1]["f"]
    assert {token for _, token in data["steps"][-1]["f"]} == {129}


def test_hostile_texts_stay_texts(dllm: Dllm, trace: Path, tmp_path: Path) -> None:
    header, *steps = lines_of(trace)
    tokens = sorted({t for s in steps for t in s["canvas"]})
    header["texts"] |= {str(t): HOSTILE[i % len(HOSTILE)] for i, t in enumerate(tokens)}
    header["model"] = header["options"]["remasking"] = "</title>" + HOSTILE[0]
    for step in steps:
        step["texts"] = {}
    trace.write_text("".join(json.dumps(line) + "\n" for line in [header, *steps]))
    assert dllm("trace", trace, "--html", tmp_path / "t.html").code == 0
    text = (tmp_path / "t.html").read_text(encoding="utf-8")
    page = Page(text)
    assert [t for t, _ in page.tags].count("script") == 2
    assert "alert" not in page.scripts[1]
    assert page.title.startswith(header["model"])
    assert "<script>alert" not in text
    data = json.loads(page.scripts[0])
    assert [data["texts"][str(t)] for t in tokens] == [header["texts"][str(t)] for t in tokens]
    assert dllm("trace", trace).code == 0
