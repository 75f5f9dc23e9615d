"""The samplers of LLaDA, Fast-dLLM and Dream against the authors' code: every canvas of every trace, by the token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dllm_core.decoding.loop import decode
from dllm_core.decoding.options import DecodeOptions

EOT = 126348  # the published <|eot_id|>; config.json does not name it, a tokenizer would
LLADA = ("llada_generate", "fastdllm_nocache", "fastdllm_prefix", "fastdllm_dual")
DREAM = ("dream_generate", "fastdllm_dream_generate", "fastdllm_dream_block")
LOGITS = 1e-3  # absolute
SURE, NEVER = np.float32(1 - 2.0**-24), np.float32(1e-38)  # uniforms that make a draw come first, or last


class RecordedNoise:
    """The random choices of the authors' code.

    `rand` [steps, B, L] and `noise` [steps, B, L, V] are uniforms of LLaDA's sampler, `origin_rand` [steps] those of
    Dream's origin rule. Dream's multinomial draws are recorded as results: the tokens of all masked positions, or
    with alg_temp the chosen positions; uniforms are made up that lead to them.
    """

    def __init__(self, case):
        self.rand, self.noise = case.arrays.get("rand"), case.arrays.get("noise")
        self.origin = case.record.get("origin_rand")
        self.drawn = [np.ravel(draw) for draw in case.record.get("multinomial", [])]
        self.used = {}  # step -> how many of its drawn tokens were handed out

    def uniforms(self, sequence, step, positions, vocab):
        if self.noise is not None:
            return self.noise[step, sequence, positions]
        first = self.used.get(step, 0)
        self.used[step] = first + len(positions)
        out = np.zeros((len(positions), vocab))
        out[np.arange(len(positions)), self.drawn[step][first : self.used[step]]] = 0.5
        return out

    def confidences(self, sequence, step, positions):
        if self.rand is not None:
            return self.rand[step, sequence, positions]
        if self.origin is not None:
            return np.array(self.origin[step], np.float32)
        return np.where(np.isin(positions, self.drawn[step]), SURE, NEVER)


class OneOfBatch(RecordedNoise):
    """The numbers of sequence s for a decode in which it is alone."""

    def __init__(self, case, s):
        super().__init__(case)
        self.rand, self.noise = (a if a is None else a[:, s : s + 1] for a in (self.rand, self.noise))


def settings(case, **changes):
    """Arguments of the authors' generate functions as our options."""
    args = {key: value for key, value in case["args"].items() if key != "mask_id"}
    given = {"max_tokens": args.pop("gen_length", None) or args.pop("max_new_tokens")}
    if case["kind"] in DREAM:
        given["schedule"] = "timesteps"
        rule = args.pop("alg")
        given["remasking"] = "maskgit_plus" if rule == "confidence_threshold" else rule
        if case["kind"] == "fastdllm_dream_block":
            given["cache"] = "dual" if args.pop("dual_cache") else "prefix"
    elif case["kind"] != "llada_generate":
        given["cache"] = case["kind"].removeprefix("fastdllm_").replace("nocache", "none")
    return DecodeOptions.build({**args, **given, **changes})


def pads_of(case):
    mask = case.record.get("attention_mask")
    return [0] * len(case["prompt"]) if mask is None else [row.count(0) for row in mask]


def real_parts(case, canvases):
    """Rows of the authors' rectangular batch without their left pads."""
    return [row[pad:] for row, pad in zip(canvases, pads_of(case), strict=True)]


def rows_of(case, options, region):
    """How many rows the authors' pass over the columns `region` has, pads left out and guidance counted."""
    start, stop = region
    rows = sum(stop - max(start, pad) for pad in pads_of(case))
    return rows * (2 if options.cfg_scale > 0 else 1)


def prepared(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    model.facts = replace(model.facts, eot_id=EOT if model.facts.vocab_size > EOT else None)
    assert case["args"].get("mask_id", model.facts.mask_id) == model.facts.mask_id
    return model


def check_trace(model, case, options):
    prompts = real_parts(case, case["prompt"])
    trace = [real_parts(case, canvases) for canvases in case["trace"]]
    before = [list(p) + [model.facts.mask_id] * options.max_tokens for p in prompts]
    assert before == trace[0]
    steps = list(decode(model, prompts, options, RecordedNoise(case)))
    for i, (step, want) in enumerate(zip(steps, trace[1:], strict=False)):
        assert [canvas.tolist() for canvas in step.canvas] == want, f"canvas after pass {i}"
    assert len(steps) == case["nfe"] == len(trace) - 1
    whole = [[0, len(canvases[0])] for canvases in case["trace"][1:]]  # some records of full passes do not say
    regions = case.record.get("regions", whole)
    assert [step.rows_run for step in steps] == [rows_of(case, options, region) for region in regions]
    assert [canvas.tolist() for canvas in steps[-1].canvas] == real_parts(case, case["output"])
    assert sum(np.sum(c == model.facts.mask_id) for c in steps[-1].canvas) == case["masks_left"]


@pytest.mark.golden(*LLADA, *DREAM)
def test_every_canvas(golden_model, case, backend_name):
    check_trace(prepared(golden_model, case, backend_name), case, settings(case))


@pytest.mark.golden(*LLADA, *DREAM)
def test_scoring_all_rows_gives_the_same_canvases(golden_model, case, backend_name):
    check_trace(prepared(golden_model, case, backend_name), case, settings(case, all_rows=True))


@pytest.mark.golden(*LLADA, *DREAM)
def test_each_prompt_alone_gives_what_it_gives_in_its_batch(golden_model, case, backend_name):
    model = prepared(golden_model, case, backend_name)
    outputs = real_parts(case, case["output"])
    for s, prompt in enumerate(real_parts(case, case["prompt"])):
        *_, last = decode(model, [prompt], settings(case), OneOfBatch(case, s))
        assert last.canvas[0].tolist() == outputs[s]


@pytest.mark.golden(*LLADA, *DREAM, array="call")
def test_logits_of_cached_passes(golden_model, case, backend_name, monkeypatch):
    """The first and the last cached pass of a block: what is stale must be as stale as in the authors' cache."""
    model = prepared(golden_model, case, backend_name)
    passes = []
    hidden = model.hidden

    def recording(ids, kv, rows, keep=None):
        passes.append((rows.positions, hidden(ids, kv, rows)))
        return passes[-1][1] if keep is None else passes[-1][1][keep]

    monkeypatch.setattr(model, "hidden", recording)
    for _ in decode(model, case["prompt"], settings(case)):
        pass
    assert len(passes) == case["nfe"]
    for name, want in case.arrays.items():
        positions, states = passes[int(name.removeprefix("call"))]
        start, stop = case["regions"][int(name.removeprefix("call"))]
        assert positions.tolist() == list(range(start, stop))
        found = model.backend.linear(states, model.head)
        np.testing.assert_allclose(found, want[0], rtol=0, atol=LOGITS, err_msg=name)
