"""The sampler against the authors' code: every canvas of every trace, token for token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dllm_core.decoding.loop import decode
from dllm_core.decoding.options import DecodeOptions

EOT = 126348  # the published <|eot_id|>; config.json does not name it, a tokenizer would


class RecordedNoise:
    """The numbers that the authors' code drew: confidences [steps, B, L] and uniforms [steps, B, L, V]."""

    def __init__(self, arrays):
        self.rand, self.noise = arrays.get("rand"), arrays.get("noise")

    def uniforms(self, sequence, step, positions, vocab):
        return self.noise[step, sequence, positions]

    def confidences(self, sequence, step, positions):
        return self.rand[step, sequence, positions]


def settings(args, **changes):
    """Arguments of the authors' generate() as our options."""
    renamed = {"gen_length": "max_tokens"}
    given = {renamed.get(key, key): value for key, value in args.items() if key != "mask_id"}
    return DecodeOptions.build({**given, **changes})


def real_parts(case, canvases):
    """Rows of the authors' rectangular batch without their left pads."""
    pads = [0] * len(case["prompt"])
    if case["attention_mask"] is not None:
        pads = [row.count(0) for row in case["attention_mask"]]
    return [row[pad:] for row, pad in zip(canvases, pads, strict=True)]


def check_trace(model, case, options):
    model.facts = replace(model.facts, eot_id=EOT if model.facts.vocab_size > EOT else None)
    assert case["args"]["mask_id"] == model.facts.mask_id
    prompts = real_parts(case, case["prompt"])
    trace = [real_parts(case, canvases) for canvases in case["trace"]]
    before = [list(p) + [model.facts.mask_id] * options.max_tokens for p in prompts]
    assert before == trace[0]
    steps = list(decode(model, prompts, options, RecordedNoise(case.arrays)))
    assert len(steps) == case["nfe"] == len(trace) - 1
    for i, (step, want) in enumerate(zip(steps, trace[1:], strict=True)):
        assert [canvas.tolist() for canvas in step.canvas] == want, f"canvas after pass {i}"
    assert [canvas.tolist() for canvas in steps[-1].canvas] == real_parts(case, case["output"])
    assert sum(np.sum(c == model.facts.mask_id) for c in steps[-1].canvas) == case["masks_left"]
    return steps


@pytest.mark.golden("llada_generate")
def test_every_canvas(golden_model, case, backend_name):
    check_trace(golden_model(case, backend_name), case, settings(case["args"]))


@pytest.mark.golden("llada_generate")
def test_scoring_all_rows_gives_the_same_canvases(golden_model, case, backend_name):
    check_trace(golden_model(case, backend_name), case, settings(case["args"], all_rows=True))


@pytest.mark.golden("llada_generate")
def test_each_prompt_alone_gives_what_it_gives_in_its_batch(golden_model, case, backend_name):
    model = golden_model(case, backend_name)
    options, noise = settings(case["args"]), RecordedNoise(case.arrays)
    outputs = real_parts(case, case["output"])
    for s, prompt in enumerate(real_parts(case, case["prompt"])):
        one = RecordedNoise({key: array[:, s : s + 1] for key, array in case.arrays.items()}) if case.arrays else noise
        last = list(decode(model, [prompt], options, one))[-1]
        assert last.canvas[0].tolist() == outputs[s]
