"""Noise: a number depends on seed, sequence, step and position alone."""

from __future__ import annotations

import numpy as np
import pytest

from dllm_core.decoding.noise import SeededNoise

SOME = np.array([3, 17, 40])


def test_the_same_seed_gives_the_same_numbers():
    a, b = SeededNoise(7), SeededNoise(7)
    np.testing.assert_array_equal(a.uniforms(0, 2, SOME, 50), b.uniforms(0, 2, SOME, 50))
    np.testing.assert_array_equal(a.confidences(0, 2, SOME), b.confidences(0, 2, SOME))
    # asking again, or for something else in between, changes nothing
    first = a.uniforms(0, 2, SOME, 50)
    a.confidences(1, 9, SOME)
    np.testing.assert_array_equal(a.uniforms(0, 2, SOME, 50), first)


def test_the_numbers_themselves():
    """Written down once: they must not change with a version of ours or of numpy."""
    noise = SeededNoise(0)
    found = noise.uniforms(0, 0, np.array([0]), 2)[0].tolist()
    generator = np.random.Generator(np.random.Philox(key=[0, 0], counter=[0, 0, 0, 1]))
    assert found == generator.random(2).tolist()


@pytest.mark.parametrize("kind", ["uniforms", "confidences"])
def test_a_row_does_not_depend_on_the_others(kind):
    noise = SeededNoise(1)

    def draw(positions):
        positions = np.array(positions)
        return noise.uniforms(1, 4, positions, 33) if kind == "uniforms" else noise.confidences(1, 4, positions)

    whole = draw(range(20))
    np.testing.assert_array_equal(draw([5]), whole[[5]])
    np.testing.assert_array_equal(draw([19, 2, 11]), whole[[19, 2, 11]])


def test_every_part_of_the_key_counts():
    def draw(seed=1, sequence=0, step=0, position=0):
        return tuple(SeededNoise(seed).uniforms(sequence, step, np.array([position]), 4)[0])

    keys = [{}, {"seed": 2}, {"sequence": 1}, {"step": 1}, {"position": 1}, {"seed": 2**63}, {"seed": 2**64 - 1}]
    assert len({draw(**key) for key in keys}) == len(keys)
    # two parts that change places, and neighbours whose counters could overlap
    assert draw(sequence=1, step=2) != draw(sequence=2, step=1)
    rows = SeededNoise(0).uniforms(0, 0, np.arange(50), 1000)
    assert len(np.unique(rows)) == rows.size


def test_uniforms_and_confidences_are_different_numbers():
    noise = SeededNoise(0)
    assert np.float32(noise.uniforms(0, 0, np.array([0]), 1)[0, 0]) != noise.confidences(0, 0, np.array([0]))[0]


def test_types_ranges_and_spread():
    noise = SeededNoise(5)
    uniforms = noise.uniforms(0, 1, np.arange(30), 500)
    assert uniforms.shape == (30, 500)
    assert uniforms.dtype == np.float64
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    assert abs(uniforms.mean() - 0.5) < 0.01
    confidences = noise.confidences(0, 1, np.arange(2000))
    assert confidences.dtype == np.float32
    assert confidences.shape == (2000,)
    assert abs(confidences.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(confidences[:-1], confidences[1:])[0, 1]) < 0.1


def test_no_positions():
    assert SeededNoise(0).confidences(0, 0, np.array([], np.int64)).shape == (0,)
    assert SeededNoise(0).uniforms(0, 0, np.array([], np.int64), 7).shape == (0, 7)
