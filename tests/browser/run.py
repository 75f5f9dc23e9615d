"""Drive the page of `dllm trace --html` in headless Chromium: python tests/browser/run.py

Not a pytest module: it needs a browser. A script is added to the page that uses keys, slider, buttons and pointer as a
person would and writes down what it sees; that is compared with the trace.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dllm_core import load
from dllm_core.testing.random_model import save_random_checkpoint
from dllm_core.trace import TraceWriter

CHROMIUM = [
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
]
HOSTILE = [
    "</script><script>hacked=1</script>",
    "<img src=x onerror=hacked=1>",
    "<!--<script>",
    "&lt;b&gt;",
    "${x}`'\"\\",
]
SCENARIO = """{
const seen = {};
const key = (key, more) => document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, ...more}));
const step = () => Number(document.documentElement.dataset.step);
const cells = () => [...document.querySelectorAll("#canvas .tok")];
const look = () => ({
  step: step(),
  texts: cells().map((cell) => cell.querySelector(".text").textContent),
  mask: cells().flatMap((cell, i) => cell.classList.contains("mask") ? [i] : []),
  new: cells().flatMap((cell, i) => cell.classList.contains("new") ? [i] : []),
  gone: cells().flatMap((cell, i) => cell.classList.contains("gone") ? [i] : []),
  coloured: cells().flatMap((cell, i) => cell.style.background ? [i] : []),
  now: document.getElementById("now").textContent,
  slider: Number(document.getElementById("slider").value),
});
const click = (id) => document.getElementById(id).click();
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
  seen.start = look();
  seen.steps = [];
  for (let i = 0; i < TOTAL; i++) { key("ArrowRight"); seen.steps.push(look()); }
  key("ArrowRight");
  seen.beyond = step();
  key("ArrowLeft"); seen.left = look();
  key("Home"); key("ArrowLeft"); seen.home = step();
  key("ArrowRight", {shiftKey: true}); seen.ten = step();
  const slider = document.getElementById("slider");
  slider.value = 2; slider.dispatchEvent(new Event("input")); seen.slid = look();
  click("last"); seen.last = step(); click("back"); seen.back = step();
  click("first"); click("next"); seen.next = step();
  const cell = cells()[POINTED];
  click("last");
  cell.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
  seen.tip = [...document.querySelectorAll("#tip td")].map((cell) => cell.textContent);
  seen.what = document.querySelector("#tip .what").textContent;
  key("Escape"); seen.hidden = document.getElementById("tip").hidden;
  click("first"); key(" "); await wait(700); key(" ");
  seen.paused = step(); await wait(500); seen.stays = step();
  document.getElementById("speed").value = "100"; click("play"); await wait(15 * TOTAL + 1500); seen.played = step();
  const before = getComputedStyle(document.body).backgroundColor;
  key("d"); seen.themes = [before, getComputedStyle(document.body).backgroundColor];
  seen.scripts = document.scripts.length; seen.images = document.images.length; seen.hacked = typeof hacked;
  const box = document.getElementById("timeline");
  const pixels = box.getContext("2d").getImageData(0, 0, box.width, box.height).data;
  seen.drawn = new Set(pixels).size;
  document.body.dataset.seen = JSON.stringify(seen);
})();
}"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        check(path, "hostile texts", hostile_trace(path / "hostile.jsonl"))
        check(path, "a real decode", real_trace(path / "real.jsonl"))
    print("the page plays, steps, scrubs and tells what is under the pointer")
    return 0


def check(folder: Path, name: str, trace: Path) -> None:
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    header, steps = lines[0], lines[1:]
    texts = {int(k): v for line in lines for k, v in line["texts"].items()}
    pointed = steps[-1]["commits"][-1]["position"]
    seen = drive(folder, trace, len(steps), pointed)

    def text(token: int) -> str:
        if token == header["mask_id"]:
            return ""
        return (
            ["eos", "eot"][header["end_ids"].index(token)]
            if token in header["end_ids"]
            else texts.get(token, str(token))
        )

    before = header["canvas"]
    compare(f"{name}: start", seen["start"]["texts"], [text(t) for t in before])
    compare(f"{name}: masks", seen["start"]["mask"], [i for i, t in enumerate(before) if t == header["mask_id"]])
    committed: set[int] = set()
    for step, found in zip(steps, seen["steps"], strict=True):
        where = f"{name}: step {step['index'] + 1}"
        compare(where, found["step"], step["index"] + 1)
        compare(where, found["slider"], step["index"] + 1)
        compare(f"{where} texts", found["texts"], [text(t) for t in step["canvas"]])
        masks = [i for i, t in enumerate(step["canvas"]) if t == header["mask_id"]]
        new = sorted(c["position"] for c in step["commits"])
        committed = (committed | set(new)) - set(masks)
        compare(f"{where} masks", found["mask"], masks)
        compare(f"{where} new", found["new"], new)
        compare(f"{where} taken back", found["gone"], sorted(set(step["revoked"]) - set(new)))
        compare(f"{where} coloured", found["coloured"], sorted(committed))
        compare(f"{where} words", f"masks left {len(masks)}" in found["now"], True)
    total = len(steps)
    compare(f"{name}: keys", [seen[k] for k in ("beyond", "home", "ten")], [total, 0, min(10, total)])
    compare(f"{name}: left", seen["left"]["texts"], seen["steps"][-2]["texts"])
    compare(f"{name}: slider", seen["slid"]["texts"], seen["steps"][1]["texts"])
    compare(f"{name}: buttons", [seen[k] for k in ("last", "back", "next")], [total, total - 1, 1])
    compare(f"{name}: play", [seen["paused"] > 0, seen["paused"], seen["played"]], [True, seen["stays"], total])
    commit = steps[-1]["commits"][-1]
    facts = dict(zip(seen["tip"][::2], seen["tip"][1::2], strict=True))
    compare(f"{name}: id", (facts["id"], facts["position"]), (str(commit["token"]), str(pointed)))
    compare(f"{name}: when", facts["committed"], f"step {total}, block {steps[-1]['block'] + 1}")
    compare(f"{name}: confidence", abs(float(facts["confidence"]) - commit["confidence"]) < 1e-3, True)
    if commit["token"] in texts:
        compare(f"{name}: text", json.loads(seen["what"]), texts[commit["token"]])
    compare(f"{name}: tip", seen["hidden"], True)
    compare(f"{name}: nothing got in", [seen[k] for k in ("scripts", "images", "hacked")], [3, 0, "undefined"])
    compare(f"{name}: themes", len(set(seen["themes"])), 2)
    compare(f"{name}: timeline", seen["drawn"] > 10, True)


def drive(folder: Path, trace: Path, total: int, pointed: int) -> dict[str, Any]:
    """What the scenario wrote down; fails on any error that the page logs."""
    page = trace.with_suffix(".html")
    subprocess.run([sys.executable, "-m", "dllm_core.cli.main", "trace", str(trace), "--html", str(page)], check=True)
    script = SCENARIO.replace("TOTAL", str(total)).replace("POINTED", str(pointed))
    page.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    command = [*CHROMIUM, f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(folder)})
    logged = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    compare("console", logged, [])
    found = re.search(r'<body[^>]* data-seen="([^"]*)"', done.stdout)
    if found is None:
        sys.exit(f"the scenario did not end\n{done.stderr[-2000:]}")
    return json.loads(html.unescape(found[1]))


def compare(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, not {wanted!r}")


def hostile_trace(path: Path) -> Path:
    """Texts that would break out of a script or an element; a revoke; a token taken back and written at once."""
    texts = {str(i): text for i, text in enumerate(HOSTILE)}
    canvas = [0, 1, 2, *[9] * 5]
    header = {
        "trace": 1, "dllm": "0", "model": "</title><script>hacked=1</script>",
        "backend": "b", "isa": "i", "scheme": "s", "threads": 1,
        "options": {"remasking": HOSTILE[0]}, "mask_id": 9, "end_ids": [8, 7], "canvas": canvas,
        "texts": {**texts, "8": "<|endoftext|>", "7": "<|eot_id|>", "9": "[MASK]"},
    }  # fmt: skip
    changes = [([(3, 0), (4, 1)], []), ([(5, 3)], [4]), ([(4, 4), (5, 2)], [5]), ([(6, 7), (7, 8)], [])]
    lines = [header]
    for index, (commits, revoked) in enumerate(changes):
        for position in revoked:
            canvas = [9 if i == position else t for i, t in enumerate(canvas)]
        for position, token in commits:
            canvas = [token if i == position else t for i, t in enumerate(canvas)]
        entries = [{"position": p, "token": t, "confidence": 0.1 + 0.1 * p} for p, t in commits]
        lines.append(
            {"index": index, "block": 0, "canvas": canvas, "commits": entries, "revoked": revoked, "rows_run": 8,
             "ms": 1.5, "finished": "eos" if index == 3 else None, "texts": {}}
        )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def real_trace(path: Path) -> Path:
    """A decode that takes tokens back."""
    folder = save_random_checkpoint(path.parent / "model", max_length=64)
    engine = load(str(folder), backend="numpy", scheme="f32", threads=1)
    prompt = [3, 4, 5]
    given: dict[str, Any] = {"max_tokens": 24, "strategy": "careful", "eos": "keep", "block_length": 8}
    with TraceWriter(path) as trace:
        trace.begin(engine, engine.options(**given), [*prompt, *[engine.model.facts.mask_id] * 24])
        engine.generate_batch([prompt], on_step=trace.step, **given)
    return path


if __name__ == "__main__":
    sys.exit(main())
