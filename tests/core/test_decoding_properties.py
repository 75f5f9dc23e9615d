"""What holds for every policy: combinations of caches, commit rules, schedules, revokes and endings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_core.decoding import options as option_values
from dllm_core.decoding.canvas import Canvas
from dllm_core.decoding.loop import decode, decode_canvas
from dllm_core.decoding.options import DecodeOptions
from dllm_core.errors import UsageError
from dllm_core.models.llada import Llada
from dllm_core.testing import random_checkpoint

SIZES = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 24, "vocab": 20}


def model_on(backend, shifted=False, always_mask=False):
    """A random model that never proposes the mask token, or that always does."""
    config, tensors = random_checkpoint(**SIZES)
    head, mask = tensors.arrays["model.transformer.ff_out.weight"], config["mask_token_id"]
    head[mask] = 0  # the largest of the other logits is positive
    if always_mask:
        head[:] = -np.abs(head)
        head[mask] = 1
    model = Llada(config, tensors, backend, "f32")
    if always_mask:  # hidden states are positive, so all logits but the mask's are negative
        hidden = model.hidden
        model.hidden = lambda *args: np.abs(hidden(*args))
    if shifted:
        model.predictor = lambda positions: np.maximum(positions - 1, 0)
    return model


PLAIN, SHIFTED = model_on(NumpyBackend(1)), model_on(NumpyBackend(1), shifted=True)
STUCK = model_on(NumpyBackend(1), always_mask=True)
MASK, EOS = PLAIN.facts.mask_id, PLAIN.facts.eos_id
MODELS = {"plain": PLAIN, "shifted": SHIFTED, "stuck": STUCK}
PROMPTS = [[5, 17, 3], [9, 4, 8, 7, 11, 3], [2]]
SMALL = {"max_tokens": 7, "block_length": 3}

# every cache, rule, schedule, measure, revoke and ending at least once
POLICIES = [
    {},
    {"steps": 4},
    {"steps": 12},
    {"steps": 12, "cfg_scale": 1.0, "eos_penalty": 1.0},
    {"schedule": "cosine"},
    {"schedule": "cosine", "steps": 14, "cache": "prefix"},
    {"cache": "prefix"},
    {"cache": "dual"},
    {"cache": "dual", "steps": 4},
    {"cache": "interstep", "refresh": 2},
    {"commit": "threshold", "threshold": 0.3},
    {"commit": "threshold", "threshold": 0.3, "cache": "prefix", "remasking": "margin"},
    {"commit": "threshold", "threshold": 0.4, "cache": "dual"},
    {"commit": "factor", "factor": 1.2},
    {"commit": "factor", "factor": 0.8, "cache": "dual", "cfg_scale": 0.7},
    {"commit": "entropy-bound", "gamma": 1.5},
    {"commit": "entropy-exit", "gamma": 1.2, "cache": "interstep", "refresh": 3},
    {"remasking": "margin", "cfg_scale": 1.0},
    {"remasking": "entropy", "cache": "prefix"},
    {"schedule": "timesteps", "remasking": "entropy"},
    {"schedule": "timesteps", "remasking": "maskgit_plus", "steps": 4},
    {"schedule": "timesteps", "remasking": "topk_margin", "cache": "dual"},
    {"schedule": "timesteps", "remasking": "entropy", "cache": "interstep", "refresh": 2},
    {"schedule": "timesteps", "commit": "threshold", "threshold": 0.5, "remasking": "maskgit_plus", "steps": 4},
    {"schedule": "timesteps", "commit": "threshold", "threshold": 0.4, "remasking": "maskgit_plus", "cache": "prefix"},
    {"revoke": "confidence", "revoke_below": 0.4},
    {"revoke": "confidence", "revoke_below": 0.6, "commit": "threshold", "threshold": 0.2},
    {"eos": "stop", "commit": "threshold", "threshold": 0.3},
    {"eos": "stop", "grow": True},
    {"eos": "stop", "grow": True, "cache": "dual", "commit": "factor"},
    {"eos": "stop", "grow": True, "cache": "interstep", "cfg_scale": 0.5},
    {"eos": "forbid", "cache": "dual"},
    {"eos_penalty": 2.0, "suppress_ids": (3, 4), "cache": "prefix"},
]
RANDOM = [
    {"temperature": 0.8},
    {"temperature": 0.8, "steps": 12, "cfg_scale": 0.5},
    {"temperature": 0.8, "cache": "dual", "top_k": 5},
    {"temperature": 0.7, "top_p": 0.9, "commit": "threshold", "threshold": 0.4},
    {"temperature": 0.6, "cfg_scale": 0.5, "cache": "prefix", "commit": "factor"},
    {"remasking": "random", "cache": "interstep", "refresh": 2},
    {"schedule": "timesteps", "remasking": "origin"},
    {"schedule": "timesteps", "remasking": "entropy", "alg_temp": 0.5},
    {"schedule": "timesteps", "remasking": "maskgit_plus", "temperature": 0.9, "top_k": 6, "cache": "dual"},
    {"revoke": "remdm", "revoke_rate": 0.4},
    {"revoke": "remdm", "revoke_rate": 0.4, "temperature": 0.5, "eos": "stop"},
]


def traced(model, prompts, **given):
    """For every sequence, its canvases without repetitions."""
    traces = [[] for _ in prompts]
    for step in decode(model, prompts, DecodeOptions(**{**SMALL, **given})):
        for trace, canvas in zip(traces, step.canvas, strict=True):
            if not trace or trace[-1] != canvas.tolist():
                trace.append(canvas.tolist())
    return traces


# ---- what every step keeps to ----


class Watch:
    """Follows a decode step by step and checks what every policy must keep to."""

    def __init__(self, canvas, options, model):
        self.options, self.model = options, model
        self.canvases = canvas.copies()
        self.frozen = [c != MASK for c in self.canvases]
        self.revoked = [np.zeros(len(c), int) for c in self.canvases]
        self.finished = [None] * len(self.canvases)

    def see(self, step):
        left = any(np.any(c == MASK) for c in self.canvases)
        assert [len(c) for c in step.canvas] == [len(c) for c in self.canvases]
        for s, (before, after) in enumerate(zip(self.canvases, step.canvas, strict=True)):
            if self.finished[s] is not None:
                assert np.array_equal(before, after)
            mine = step.sequence == s
            self.sequence(s, before, after, step.position[mine], step.token[mine], step.revoked[s], step.finished[s])
        self.canvases, self.finished = step.canvas, step.finished
        assert np.all(np.isfinite(step.confidence))
        # a step that the schedule has left over runs nothing where every row is cached
        assert step.rows_run > 0 or (self.options.cache == "interstep" and not left)

    def sequence(self, s, before, after, position, token, revoked, finished):
        assert len(np.unique(position)) == len(position)
        held = before != MASK
        # frozen positions never change; committed tokens do only when they are revoked
        assert np.array_equal(after[self.frozen[s]], before[self.frozen[s]])
        kept = np.setdiff1d(np.flatnonzero(held), revoked)
        assert np.array_equal(after[kept], before[kept])
        assert held[revoked].all()
        assert not self.frozen[s][revoked].any()
        # what is written was a mask, and the canvas shows it
        assert not held[np.setdiff1d(position, revoked)].any()
        if self.options.revoke != "confidence":  # its tokens are taken back after the pass
            assert np.array_equal(after[position], token)
        masks = np.sum(after == MASK)
        assert masks <= np.sum(~held) + len(revoked)
        # nothing else was written, except that a finished sequence is filled up
        written = np.setdiff1d(np.flatnonzero(~held & (after != MASK)), position)
        assert len(written) == 0 or (finished is not None and np.all(after[written] == EOS) and masks == 0)
        self.revoked[s][revoked] += 1
        assert self.revoked[s].max(initial=0) <= self.options.revoke_limit


def check(model, canvas, options):
    """Run a decode to its end under watch; the number of its passes."""
    watch = Watch(canvas, options, model)
    masks = int(np.sum(canvas.ids == MASK))
    most = options.total_steps + 2 * masks * (2 + options.revoke_limit) + 4 * (masks + 1)
    ran = []
    hidden = model.hidden
    model.hidden = lambda ids, kv, rows, *rest: ran.append(len(rows)) or hidden(ids, kv, rows, *rest)
    try:
        for count, step in enumerate(decode_canvas(model, canvas, options)):
            assert count < most, "this decode does not end"
            watch.see(step)
            assert ran == [step.rows_run]
            ran.clear()
    finally:
        model.hidden = hidden
    return watch


def accepted(**fixed):
    """Every combination of choices that DecodeOptions accepts."""
    names = ("cache", "commit", "schedule", "remasking", "revoke", "eos")
    choices = [option_values.CHOICES[name] for name in names]
    for *chosen, grow in itertools.product(*choices, (False, True)):
        try:
            yield DecodeOptions(**dict(zip(names, chosen, strict=True)), grow=grow, **fixed)
        except UsageError:
            continue


EVERY = list(accepted(max_tokens=4, block_length=2, threshold=0.4, gamma=1.0, refresh=2, revoke_limit=1))


def test_there_are_many_combinations():
    assert len(EVERY) > 500
    for name, choices in option_values.CHOICES.items():
        assert {getattr(o, name) for o in EVERY} == set(choices)


@pytest.mark.parametrize("which", MODELS)
@pytest.mark.parametrize("cache", option_values.CACHES)
def test_every_combination_ends_and_keeps_to_the_rules(which, cache):
    for options in EVERY:
        if options.cache == cache:
            watch = check(MODELS[which], Canvas.start([[3, 1], [7]], options.max_tokens, MASK), options)
            left = [int(np.sum(c == MASK)) for c in watch.canvases]
            assert left == ([4, 4] if which == "stuck" else [0, 0]), options


templates = st.lists(
    st.lists(st.sampled_from([3, 7, EOS, MASK, MASK]), min_size=1, max_size=9).filter(lambda t: MASK in t),
    min_size=1,
    max_size=3,
)
numbers = st.fixed_dictionaries(
    {
        "max_tokens": st.just(9),
        "block_length": st.integers(1, 9),
        "temperature": st.sampled_from([0.0, 0.0, 0.7]),
        "cfg_scale": st.sampled_from([0.0, 0.0, 1.0]),
        "threshold": st.sampled_from([0.0, 0.3, 1.0]),
        "factor": st.sampled_from([0.0, 1.0, 5.0]),
        "gamma": st.sampled_from([0.0, 1.0, 100.0]),
        "refresh": st.integers(1, 4),
        "revoke_rate": st.sampled_from([0.0, 0.3, 1.0]),
        "revoke_below": st.sampled_from([0.0, 0.5, 1.0]),
        "revoke_limit": st.integers(1, 3),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@given(templates, st.sampled_from(EVERY), numbers, st.integers(0, 6), st.sampled_from(list(MODELS)))
@settings(max_examples=150, deadline=None)
def test_templates_and_numbers_at_random(canvases, chosen, given_numbers, extra, which):
    names = (*option_values.CHOICES, "grow")
    steps = -(-given_numbers["max_tokens"] // given_numbers["block_length"]) + extra
    options = DecodeOptions(**{name: getattr(chosen, name) for name in names}, **given_numbers, steps=steps)
    check(MODELS[which], Canvas.template(canvases, MASK), options)


def test_a_step_that_is_left_over_runs_no_row_where_all_are_cached():
    given = {
        "max_tokens": 9,
        "block_length": 1,
        "steps": 9,
        "schedule": "timesteps",
        "cache": "interstep",
        "refresh": 2,
    }
    options = DecodeOptions(commit="threshold", threshold=0.0, **given)
    steps = list(decode_canvas(PLAIN, Canvas.template([[MASK]], MASK), options))
    assert steps[0].rows_run == 1
    assert 0 in [step.rows_run for step in steps[1:]]
    assert all(len(step.token) == 0 for step in steps[1:])


# ---- what must not matter ----


@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_together_as_each_alone(policy, shifted):
    model = SHIFTED if shifted else PLAIN
    together = traced(model, PROMPTS, **policy)
    assert together == [traced(model, [p], **policy)[0] for p in PROMPTS]


@pytest.mark.parametrize("policy", RANDOM, ids=str)
def test_random_numbers_do_not_depend_on_the_sequences_around(policy):
    first, _, third = traced(PLAIN, PROMPTS, **policy)
    assert traced(PLAIN, PROMPTS[:1], **policy) == [first]
    changed = traced(PLAIN, [PROMPTS[0], [1, 1, 1, 1], PROMPTS[2], [4]], **policy)
    assert (changed[0], changed[2]) == (first, third)


@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
@pytest.mark.parametrize("policy", POLICIES + RANDOM, ids=str)
def test_scoring_all_rows_changes_nothing(policy, shifted):
    model = SHIFTED if shifted else PLAIN
    assert traced(model, PROMPTS, all_rows=True, **policy) == traced(model, PROMPTS, **policy)


@pytest.mark.parametrize("policy", POLICIES + RANDOM, ids=str)
def test_every_backend_gives_the_same_trace(policy, registry):
    native = model_on(registry.backend("cffi-simd", 2))
    assert traced(native, PROMPTS, **policy) == traced(PLAIN, PROMPTS, **policy)


# ---- caches that must change nothing ----


@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
@pytest.mark.parametrize("policy", [p for p in POLICIES if "cache" not in p and "revoke" not in p], ids=str)
def test_interstep_that_always_refreshes_is_no_cache(policy, shifted):
    model = SHIFTED if shifted else PLAIN
    # a cache ends a block when it is filled; more steps than tokens would be run without one
    assert traced(model, PROMPTS, cache="interstep", refresh=1, **policy) == traced(model, PROMPTS, **policy)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("policy", [{"cfg_scale": 1.0}, {"remasking": "margin"}, {"schedule": "cosine"}], ids=str)
def test_blocks_of_one_pass_need_no_cache(cache, policy):
    """Every pass is the first of its block, and so runs every row."""
    one_pass = {"max_tokens": 9, "steps": 3, **policy}
    assert traced(PLAIN, PROMPTS, cache=cache, **one_pass) == traced(PLAIN, PROMPTS, **one_pass)


def test_no_prompts_take_no_pass(registry):
    for name in ("numpy", "cffi-simd"):
        assert list(decode(model_on(registry.backend(name, 1)), [], DecodeOptions())) == []


def test_rows_of_every_cache():
    def rows(**given):
        chosen = DecodeOptions(max_tokens=6, block_length=3, **given)
        return [step.rows_run for step in decode(PLAIN, [[1, 2], [3]], chosen)]

    assert rows() == [15] * 6
    assert rows(cfg_scale=1.0) == [30] * 6
    assert rows(cache="prefix") == [15, 12, 12, 15, 6, 6]  # the block and all right of it
    assert rows(cache="dual") == [15, 6, 6, 15, 6, 6]  # the block alone
    assert rows(cache="dual", cfg_scale=1.0) == [30, 12, 12, 30, 12, 12]
    # the masks of the block and what has just changed
    assert rows(cache="interstep", refresh=9) == [15, 6, 4, 15, 6, 4]
    assert rows(cache="interstep", refresh=2) == [15, 6, 15, 15, 6, 15]
    # a canvas that grows: one block, then two
    assert rows(eos="stop", grow=True, suppress_ids=(EOS,)) == [9] * 3 + [15] * 3
