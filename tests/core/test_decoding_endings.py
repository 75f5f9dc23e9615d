"""Ends of a decode and what is taken back, on a model whose logits are written down here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend

from dllm_core.api import Engine
from dllm_core.decoding.canvas import Canvas
from dllm_core.decoding.loop import decode, decode_canvas
from dllm_core.decoding.options import DecodeOptions
from dllm_core.models.base import Facts
from dllm_core.tensors import from_array

VOCAB = 12
MASK, EOS, EOT = 11, 10, 9
A, B, C, D = 1, 2, 3, 4


class Scripted:
    """A model that reads its logits off tables [positions, VOCAB]: one for each pass, the last one for all later.

    `shifted` stores what predicts position p at row p - 1.
    """

    scheme = "f32"

    def __init__(self, *tables, shifted=False):
        self.backend = NumpyBackend(1)
        self.facts = Facts("scripted", 1, VOCAB, 1, 2, VOCAB, mask_id=MASK, eos_id=EOS, max_length=64, eot_id=EOT)
        self.head = self.backend.prepare_linear([from_array(np.eye(VOCAB, dtype=np.float32), "head")], "f32")
        self.tables, self.shifted, self.passes = tables, shifted, []

    def predictor(self, positions):
        return np.maximum(positions - 1, 0) if self.shifted else positions

    def hidden(self, ids, kv, rows, keep=None):
        table = self.tables[min(len(self.passes), len(self.tables) - 1)]
        self.passes.append(rows.positions.tolist())
        found = table[rows.positions + 1 if self.shifted else rows.positions]
        return np.ascontiguousarray(found if keep is None else found[keep])


def table(*says, length=24):
    """Logits [length, VOCAB]: position p says says[p], a token or (token, logit); all else has logit 0."""
    out = np.zeros((length, VOCAB), np.float32)
    for p, said in enumerate(says):
        token, logit = said if isinstance(said, tuple) else (said, 5.0)
        out[p, token] = logit
    return out


def probability(logit):
    return np.exp(logit) / (np.exp(logit) + VOCAB - 1)


def run(model, prompts=((A,),), **given):
    return list(decode(model, prompts, DecodeOptions(**{"block_length": 4, **given})))


# ---- end tokens ----

# one token of prompt, then A, EOS (surest), B, C, and a second block of D
ANSWER = table(0, A, (EOS, 8.0), B, C, D, D, D, D)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "interstep"])
def test_nothing_right_of_an_end_token_costs_anything(cache):
    steps = run(Scripted(ANSWER), max_tokens=8, eos="stop", cache=cache)
    assert [step.position.tolist() for step in steps] == [[2], [1]]  # EOS, then what is left of it
    assert steps[-1].canvas[0].tolist() == [A, A, EOS, *[EOS] * 6]
    assert [step.finished for step in steps] == [[None], ["eos"]]


def test_with_keep_the_whole_canvas_is_filled():
    steps = run(Scripted(ANSWER), max_tokens=8)
    assert len(steps) == 8
    assert steps[-1].canvas[0].tolist() == [A, A, EOS, B, C, D, D, D, D]
    assert steps[-1].finished == [None]


def test_the_end_of_turn_ends_too():
    steps = run(Scripted(table(0, A, (EOT, 8.0), B, C)), max_tokens=4, eos="stop")
    assert steps[-1].canvas[0].tolist() == [A, A, EOT, EOS, EOS]
    assert len(steps) == 2


def test_end_tokens_of_the_prompt_end_nothing():
    steps = run(Scripted(table(0, 0, A, B, C, D)), prompts=[[EOS, EOT]], max_tokens=4, eos="stop")
    assert steps[-1].canvas[0].tolist() == [EOS, EOT, A, B, C, D]
    assert len(steps) == 4


def test_the_first_of_two_end_tokens_counts():
    steps = run(Scripted(table(0, A, (EOS, 7.0), B, (EOS, 8.0))), max_tokens=4, eos="stop")
    assert [step.position.tolist() for step in steps] == [[4], [2], [1]]
    assert steps[-1].canvas[0].tolist() == [A, A, EOS, EOS, EOS]


def test_one_sequence_ends_and_the_other_goes_on():
    model = Scripted(table(0, A, EOS, B, EOS, EOS, EOS, C, EOS))
    steps = run(model, prompts=[[A], [A, A, A, A, A, A]], max_tokens=4, eos="stop")
    assert steps[-1].canvas[0].tolist() == [A, A, EOS, EOS, EOS]
    assert steps[-1].canvas[1].tolist() == [*[A] * 6, EOS, EOS, EOS, EOS]
    assert [step.finished for step in steps] == [[None, "eos"], ["eos", "eos"]]
    assert [step.rows_run for step in steps] == [5 + 10, 5]


def test_an_end_token_is_waited_for_where_an_earlier_block_has_masks_left():
    """A dual cache may leave masks behind; they compete again in the next block's first pass."""
    early = table(0, (A, 7.0), (MASK, 6.0), B, B, B, B)
    later = table(0, A, B, (EOS, 8.0), C, D, D)
    steps = run(Scripted(early, early, later), max_tokens=6, block_length=2, cache="dual", eos="stop")
    assert [step.position.tolist() for step in steps] == [[1], [2], [3], [2]]
    assert [step.block for step in steps] == [0, 0, 1, 2]
    assert steps[-1].canvas[0].tolist() == [A, A, B, EOS, EOS, EOS, EOS]
    assert steps[-1].finished == ["eos"]


@pytest.mark.parametrize(
    "given", [{"eos": "forbid"}, {"suppress_ids": (EOS,)}, {"eos_penalty": 4.0}, {"logits_eos_inf": True}], ids=str
)
def test_end_tokens_can_be_kept_away(given):
    says = table(0, *[(EOS, 5.0)] * 4)
    says[:, B] = 2.0
    assert run(Scripted(says), max_tokens=4)[-1].canvas[0].tolist() == [A, *[EOS] * 4]
    steps = run(Scripted(says), max_tokens=4, **given)
    assert steps[-1].canvas[0].tolist() == [A, *[B] * 4]
    others = VOCAB - 2 if "eos_penalty" not in given else VOCAB - 3 + np.exp(1.0) + np.exp(-4.0)
    if given == {"eos": "forbid"}:
        others = VOCAB - 3  # EOT too
    elif "eos_penalty" in given:
        others = VOCAB - 3 + np.exp(1.0) + np.exp(-4.0)  # both end tokens are lowered
    np.testing.assert_allclose(steps[0].confidence, np.exp(2.0) / (np.exp(2.0) + others), rtol=1e-5)


def test_a_penalty_can_invite_an_end():
    says = table(0, *[(A, 3.0)] * 4)
    says[:, EOS] = 2.0
    assert run(Scripted(says), max_tokens=4, eos_penalty=-2.0)[-1].canvas[0].tolist() == [A, *[EOS] * 4]


# ---- a canvas that grows ----


def test_a_growing_canvas_shows_the_model_no_later_block():
    model = Scripted(table(0, A, B, C, D, EOS, A))
    steps = run(model, max_tokens=9, block_length=3, eos="stop", grow=True)
    assert model.passes == [[0, 1, 2, 3]] * 3 + [list(range(7))] * 2
    assert steps[-1].canvas[0].tolist() == [A, A, B, C, D, *[EOS] * 5]
    assert steps[-1].finished == ["eos"]


def test_a_growing_canvas_stops_at_its_limit():
    model = Scripted(table(0, *[A] * 7))
    steps = run(model, max_tokens=7, block_length=3, eos="stop", grow=True, commit="threshold", threshold=0.5)
    assert [step.rows_run for step in steps] == [4, 7, 8]
    assert steps[-1].canvas[0].tolist() == [A] * 8
    assert steps[-1].finished == [None]


# ---- blocks that go on, and blocks that cannot ----


@pytest.mark.parametrize("cache", ["prefix", "interstep"])
def test_steps_that_commit_nothing_do_not_end_a_block(cache):
    """Three tokens over twelve steps by the cosine: 1 0 0 0 0 1 0 0 1 ... with pauses of several passes."""
    steps = run(Scripted(table(0, A, B, C)), max_tokens=3, steps=12, schedule="cosine", cache=cache)
    sizes = [len(step.token) for step in steps]
    assert sum(sizes) == 3
    assert [0, 0] in [sizes[i : i + 2] for i in range(len(sizes))]
    assert steps[-1].canvas[0].tolist() == [A, A, B, C]


def test_dream_steps_that_commit_nothing_do_not_end_a_block():
    """Timesteps over a block give a cached pass less than one token for a long time."""
    model = Scripted(table(0, A, B, C), shifted=True)
    options = {"schedule": "timesteps", "remasking": "entropy", "cache": "dual"}
    steps = run(model, max_tokens=3, steps=9, **options)
    assert [len(step.token) for step in steps] == [1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert steps[-1].canvas[0].tolist() == [A, A, B, C]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize(("steps", "sizes"), [(2, [1, 3]), (1, [1, 3]), (3, [1, 2, 1]), (None, [1, 1, 1, 1])])
def test_a_shifted_model_fills_its_blocks_whatever_the_first_pass_may_decide(cache, steps, sizes):
    """A block cache's full pass decides on one token; the rest of its quota is owed to the next pass."""
    found = run(Scripted(table(0, A, B, C, D), shifted=True), max_tokens=4, steps=steps, cache=cache)
    assert [len(step.token) for step in found] == sizes
    assert found[-1].canvas[0].tolist() == [A, A, B, C, D]


def test_what_is_owed_is_paid_once():
    says = table(0, *[A] * 8)
    found = run(Scripted(says, shifted=True), max_tokens=8, block_length=8, steps=4, cache="prefix")
    assert [len(step.token) for step in found] == [1, 3, 2, 2]


def test_every_pass_of_a_sequence_has_random_numbers_of_its_own():
    class Counting:
        def __init__(self):
            self.asked = []

        def uniforms(self, sequence, step, positions, vocab):
            self.asked.append((sequence, step))
            return np.full((len(positions), vocab), 0.5)

    noise = Counting()
    says = table(0, A, B, C, D, A, (B, 1.0), (C, 1.0), (D, 1.0))
    # over two blocks; the first sequence needs one pass in the first block and waits for the other one
    options = DecodeOptions(max_tokens=4, block_length=2, temperature=0.1, commit="threshold", threshold=0.5)
    steps = list(decode(Scripted(says), [[A], [A, A, A, A, A]], options, noise))
    assert [step.rows_run for step in steps] == [14, 9, 14, 9]
    assert [step for sequence, step in noise.asked if sequence == 0] == [0, 1]
    assert [step for sequence, step in noise.asked if sequence == 1] == [0, 1, 2, 3]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cached_pass_runs_no_row_left_of_its_block(cache):
    """The first token of a shifted block, still a mask, is read from its own row then, as in the authors' code."""
    model = Scripted(table(0, MASK, B, C), table(0, A, B, C), shifted=True)
    steps = run(model, max_tokens=3, cache=cache)
    assert model.passes == [[0, 1, 2, 3], *[[1, 2, 3]] * 3]
    assert steps[-1].canvas[0].tolist() == [A, B, B, C]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_shifted_block_that_begins_with_frozen_text(cache):
    canvas = Canvas.template([[A, MASK, MASK, D, MASK, MASK]], MASK)
    options = DecodeOptions(max_tokens=5, block_length=2, cache=cache)
    model = Scripted(table(0, A, B, 0, C, D), shifted=True)
    steps = list(decode_canvas(model, canvas, options))
    assert [step.position.tolist() for step in steps] == [[1], [2], [], [4], [5]]
    assert steps[-1].canvas[0].tolist() == [A, A, B, D, C, D]


@pytest.mark.parametrize("cache", ["none", "prefix", "interstep"])
def test_a_model_that_insists_on_the_mask_is_left_after_two_passes(cache):
    steps = run(Scripted(table(0, A, MASK, B)), max_tokens=3, commit="threshold", threshold=0.9, cache=cache)
    assert steps[-1].canvas[0].tolist() == [A, A, MASK, B]
    assert len(steps) == 3  # one that works, two in vain


def test_a_shifted_model_is_read_from_the_row_before_between_refreshes():
    """Also where the rows that run happen to be neighbours: position 3 is predicted by row 2, not by its own."""
    model = Scripted(table(0, (A, 9.0), (B, 8.0), C, D), shifted=True)
    options = {"schedule": "timesteps", "remasking": "maskgit_plus", "cache": "interstep", "refresh": 9}
    steps = run(model, max_tokens=4, **options)
    assert steps[-1].canvas[0].tolist() == [A, A, B, C, D]
    for rows, step in zip(model.passes, steps, strict=True):
        assert {int(p) - 1 for p in step.position} <= set(rows)


# ---- taking back ----


def test_a_doubted_token_is_taken_back_and_decided_again():
    first = table(0, (A, 5.0), (B, 4.0))
    doubt = table(0, (C, 5.0), (B, 4.0))  # A has probability 1 / (e^5 + 11) now
    steps = run(Scripted(first, doubt), max_tokens=2, revoke="confidence", revoke_below=0.5)
    assert [step.position.tolist() for step in steps] == [[1], [2], [1]]
    assert [step.revoked[0].tolist() for step in steps] == [[], [1], []]
    assert [step.canvas[0].tolist() for step in steps] == [[A, A, MASK], [A, MASK, B], [A, C, B]]


def test_what_was_taken_back_comes_on_top_of_the_quota():
    first = table(0, (A, 5.0), (B, 4.0), (D, 3.0))
    doubt = table(0, (C, 5.0), (B, 4.0), (D, 3.0))
    steps = run(Scripted(first, doubt), max_tokens=3, revoke="confidence", revoke_below=0.5)
    assert [step.position.tolist() for step in steps] == [[1], [2], [1, 3]]
    assert steps[-1].canvas[0].tolist() == [A, C, B, D]


def test_a_token_is_taken_back_no_more_often_than_the_limit():
    quarrel = [table(0, (token, 5.0), (B, 4.0), (B, 4.0), (B, 4.0)) for token in (A, C, D, A)]
    for limit, backs in ((1, 1), (2, 2)):
        steps = run(Scripted(*quarrel), max_tokens=4, revoke="confidence", revoke_below=0.5, revoke_limit=limit)
        assert sum(len(step.revoked[0]) for step in steps) == backs
        assert MASK not in steps[-1].canvas[0]


def test_remdm_keeps_the_schedule_of_masks():
    class Always:
        def revokes(self, sequence, step, positions):
            return np.zeros(len(positions), np.float32)

    says = table(0, *[(A, 5.0 - i / 10) for i in range(6)])
    options = DecodeOptions(max_tokens=6, block_length=6, revoke="remdm", revoke_rate=0.5, revoke_limit=2)
    steps = list(decode(Scripted(says), [[A]], options, Always()))
    assert [int(np.sum(step.canvas[0] == MASK)) for step in steps] == [5, 4, 3, 2, 1, 0]
    # not before the first step, not in the last, and nothing more than twice
    assert [len(step.revoked[0]) for step in steps] == [0, 1, 2, 2, 2, 0]
    assert [len(step.token) for step in steps] == [1, 2, 3, 3, 3, 1]


# ---- templates ----


def test_steps_of_a_template_go_where_its_masks_are():
    template = [A, MASK, MASK, D, D, D, D, D, D, MASK]
    model = Scripted(table(0, A, B, 0, 0, 0, 0, 0, 0, C))
    canvas = Canvas.template([template], MASK)
    steps = list(decode_canvas(model, canvas, DecodeOptions(max_tokens=9, block_length=3)))
    assert [step.block for step in steps] == [0, 0, 2]
    assert steps[-1].canvas[0].tolist() == [A, A, B, *[D] * 6, C]


def test_a_template_is_filled_the_same_beside_a_longer_one():
    short, long = [A, MASK, D, MASK], [A, *[MASK] * 9]
    options = DecodeOptions(max_tokens=9, block_length=3, steps=5)
    says = table(0, *[(B, 3.0 + i / 10) for i in range(9)])

    def fill(*templates):
        canvas = Canvas.template(list(templates), MASK)
        return [step.canvas[0].tolist() for step in decode_canvas(Scripted(says), canvas, options)]

    together = fill(short, long)
    assert fill(short) == [c for i, c in enumerate(together) if i == 0 or c != together[i - 1]]


@pytest.mark.parametrize("schedule", ["linear", "timesteps"])
def test_a_canvas_without_masks_takes_no_pass(schedule):
    canvas = Canvas.template([[A, B], [C]], MASK)
    assert list(decode_canvas(Scripted(ANSWER), canvas, DecodeOptions(schedule=schedule))) == []


# ---- the reason, and stop strings ----


class Letters:
    """One letter a token; special tokens have no text."""

    def decode(self, ids):
        return "".join(".abcdefgh"[i] for i in ids if i < EOT)


def generate(says, **given):
    engine = Engine(Scripted(table(0, *says)), Letters(), {}, 0.0, "scripted")
    return engine.generate([A], **{"max_tokens": len(says), "block_length": 4, **given})


@pytest.mark.parametrize(
    ("says", "given", "reason", "text"),
    [
        ([A, B, C, D], {}, "length", "abcd"),
        ([A, B, EOS, EOS], {}, "eos", "ab"),
        ([A, B, EOS, D], {"eos": "stop"}, "eos", "ab"),
        ([A, B, EOT, D], {"eos": "stop"}, "eos", "ab"),
        ([A, MASK, C, D], {}, "masks_left", None),
        ([A, B, C, D, A, B, C, D], {"stop": ("cd",)}, "stop", "ab"),
        ([A, B, C, D], {"stop": ("x", "d", "bc")}, "stop", "a"),  # the earliest of several
        ([A, B, C, D], {"stop": ("x",)}, "length", "abcd"),
        # right of an end token nothing is read
        ([A, EOS, C, D], {"stop": ("cd",)}, "eos", "a"),
        # an end token and a stop string that become final at once
        ([A, B, C, EOS], {"stop": ("b",), "eos": "stop", "commit": "threshold", "threshold": 0.5}, "stop", "a"),
    ],
)
def test_every_run_says_why_it_ended(says, given, reason, text):
    found = generate(says, **given)
    assert found.finish_reason == reason
    if text is not None:
        assert found.text == text


def test_a_stop_string_ends_the_passes():
    found = generate([A, B, *[C] * 6], stop=("b",), block_length=1)
    assert found.forward_passes == 2
    assert found.tokens == [A, A, B, *[EOS] * 6]


def test_a_stop_string_counts_once_everything_left_of_it_is_final():
    found = generate([(A, 3.0), (B, 5.0), (C, 6.0), (D, 4.0)], stop=("b",))
    assert found.forward_passes == 4  # C, B, D, and only then A
    assert (found.text, found.finish_reason) == ("a", "stop")


def test_rows_and_passes_are_added_up():
    found = generate([A, B, C, D, A, B, C, D], cache="dual")
    assert found.forward_passes == 8
    assert found.rows_run == 2 * (9 + 3 * 4)


def test_confidence_is_the_clean_probability():
    steps = run(Scripted(table(0, (A, 4.0), (B, 2.0))), max_tokens=2)
    np.testing.assert_allclose([float(s.confidence[0]) for s in steps], [probability(4.0), probability(2.0)], rtol=1e-5)


def test_facts_name_the_end_tokens():
    model = Scripted(table(0, A, (EOT, 8.0), B, C))
    model.facts = replace(model.facts, eot_id=None)
    assert len(run(model, max_tokens=4, eos="stop")) == 4  # an id that nothing names is a word like others
