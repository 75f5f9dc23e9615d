"""`dllm convert`, and the shape of what `dllm bench` prints."""

from __future__ import annotations

import json
import shutil

import pytest

from dllm_core.bench import kernel as kernel_module
from dllm_core.bench import limits as limits_module
from dllm_core.checkpoint import PACKED
from dllm_core.testing.random_model import save_random_checkpoint


@pytest.fixture
def source(tmp_path):
    return save_random_checkpoint(tmp_path / "src")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(limits_module, "BUFFER", 4 << 20)
    for module in (limits_module, kernel_module):
        monkeypatch.setattr(module, "l3_bytes", lambda: 1 << 18)


IDS = ("--prompt-ids", "1,2,3", "--no-chat", "-n", "8", "--block-length", "8", "--no-stdin")


def test_convert_then_run(dllm, source, tmp_path):
    target = tmp_path / "packed"
    done = dllm("convert", source, target, "--scheme", "qd8-f32-qb8w", "--json")
    assert (done.code, done.err) == (0, "")
    facts = done.json
    assert facts["path"] == str(target)
    assert (facts["scheme"], facts["layout"]) == ("qd8-f32-qb8w", "numpy/1/any/qd8-f32-qb8w/1x1+0")
    assert facts["bytes"] == (target / PACKED).stat().st_size
    packed, plain = dllm("run", "-m", target, *IDS), dllm("run", "-m", source, "--scheme", "qd8-f32-qb8w", *IDS)
    assert packed == plain
    assert packed.code == 0
    assert dllm("run", "-m", target / PACKED, *IDS) == plain
    other = dllm("run", "-m", target, "--scheme", "f32", *IDS)
    assert other.code == 2
    assert "qd8-f32-qb8w" in other.err
    assert "f32" in other.err


def test_another_backend_is_warned_of_once(dllm, source, tmp_path):
    dllm("convert", source, tmp_path / "packed", "--scheme", "qd8-f32-qc8w", "-b", "cffi-simd")
    moved = dllm("run", "-m", tmp_path / "packed", "-b", "numpy", *IDS)
    assert moved.code == 0
    assert moved.err.count("rearranged") == len(moved.err.strip().splitlines()) == 1
    assert "warning" in moved.err
    assert dllm("run", "-m", tmp_path / "packed", "-b", "numpy", "--quiet", *IDS).err == ""


def test_every_verb_knows_that_a_model_is_packed(dllm, source, tmp_path):
    """convert and bench take its scheme; check, which needs the float32 weights, refuses it."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert dllm("convert", source, first, "--scheme", "bf16", "-b", "cffi-simd").code == 0
    again = dllm("convert", first, second, "-b", "numpy", "--json")
    assert (again.code, again.json["scheme"]) == (0, "bf16")
    assert again.err.startswith("warning: ")
    assert again.err.count("rearranged") == len(again.err.strip().splitlines()) == 1
    assert dllm("convert", first, second, "-b", "numpy", "--force", "--quiet").err == ""
    assert dllm("run", "-m", second, *IDS) == dllm("run", "-m", source, "--scheme", "bf16", *IDS)
    refused = dllm("check", "-m", first)
    assert refused.code == 2
    assert "packed for scheme bf16" in refused.err
    assert "--scheme" not in refused.err


def test_inspect_a_packed_model(dllm, source, tmp_path):
    dllm("convert", source, tmp_path / "packed", "--scheme", "qd8-f32-qc8w")
    plain, packed = (dllm("inspect", path, "--json").json for path in (source, tmp_path / "packed"))
    for key in ("parameters", "sizes", "context", "special_ids", "model_type"):
        assert packed[key] == plain[key]
    assert packed["packed"]["layout"] == "numpy/1/any/qd8-f32-qc8w/1x1+0"
    assert list(packed["memory"]) == ["qd8-f32-qc8w"]
    assert plain["packed"] is None
    assert "numpy/1/any" in dllm("inspect", tmp_path / "packed").out


def test_exit_codes(dllm, source, tmp_path, monkeypatch):
    assert dllm("convert", tmp_path / "none", tmp_path / "out").code == 3
    assert dllm("convert", source, tmp_path / "out", "--scheme", "q9").code == 6
    assert dllm("convert", "random:llada-8b", tmp_path / "out").code == 6
    assert dllm("convert", source, tmp_path / "out").code == 0
    again = dllm("convert", source, tmp_path / "out")
    assert (again.code, "--force" in again.err) == (2, True)
    assert dllm("convert", source, tmp_path / "out", "--force").code == 0
    assert dllm("convert", source, source, "--force").code == 2
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    full = dllm("convert", source, tmp_path / "full")
    assert (full.code, "1,000 free" in full.err, (tmp_path / "full").exists()) == (4, True, False)


def test_random_models_do_not_answer(dllm):
    refused = dllm("run", "-m", "random:llada-8b", *IDS)
    assert refused.code == 6
    assert "dllm bench step --model random:llada-8b" in refused.err


def test_bench_json(dllm, source, small):
    common = {"rows", "shape", "ms", "gops", "share_of_peak", "share_of_bandwidth", "peak"}
    runs = {
        "kernel": ["--shape", "40x32,16x64", "--rows", "1,3", "--scheme", "f32,qd8-f32-qc8w"],
        "step": ["--model", source, "--rows", "6", "--head-rows", "2", "--cached", "3", "--layers", "1"],
        "decode": ["--model", source, "--strategy", "reference", "-n", "8"],
    }
    counts = {"kernel": 8, "step": 1, "decode": 1}
    for verb, options in runs.items():
        done = dllm("bench", verb, *options, "--repeats", "2", "--json")
        assert done.code == 0, done.err
        facts = done.json
        assert (facts["schema"], facts["bench"], len(facts["results"])) == (1, verb, counts[verb])
        assert facts["peak"]["read_gbs"] > 0
        assert all(set(result) >= common for result in facts["results"])
        assert "validated" in done.err
    profile = dllm("profile", *runs["step"], "--repeats", "1", "--json").json["results"][0]
    assert len(profile["layers"]) == 1
    assert profile["split"]["gemm"] > 0
    peaks = dllm("bench", "peak", "--threads", "1", "--repeats", "1", "--json").json["results"]
    assert "read" in {result["what"] for result in peaks}


def test_bench_tables(dllm, source, small):
    kernel = dllm("bench", "kernel", "--shape", "40x32", "--rows", "1,3", "--repeats", "1", "--quiet")
    assert (kernel.code, kernel.err) == (0, "")
    lines = kernel.out.splitlines()
    assert lines[0].startswith("numpy portable, 1 thread; ")
    assert [line.split()[2] for line in lines[2:]] == ["1", "3"]
    step = dllm("bench", "step", "-m", source, "--rows", "4", "--repeats", "1", "--profile").out
    assert "gemm" in step
    assert "attention" in step
    assert "2 layers" in step


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["kernel", "--shape", "3x"], 2),
        (["kernel", "--rows", "0", "--shape", "4x4"], 2),
        (["kernel", "--scheme", "f31", "--shape", "4x4"], 6),
        (["step", "--model", "random:llada-9b"], 3),
        (["step", "--model", "random:llada-8b", "--layers", "33"], 2),
        (["decode", "--model", "nothing"], 3),
        (["peak", "--threads", "0"], 2),
        (["speed"], 2),
    ],
    ids=str,
)
def test_bench_usage(arguments, code, dllm):
    done = dllm("bench", *arguments)
    assert done.code == code
    assert done.err.startswith("error: ")


def test_json_errors(dllm, source):
    done = dllm("bench", "step", "--model", source, "--rows", "4", "--head-rows", "5", "--json")
    assert done.code == 2
    assert json.loads(done.err.splitlines()[-1])["error"]["type"] == "UsageError"
