"""Random numbers of a decode, made in the core: the same seed gives every backend the same numbers.

Each number depends on (seed, sequence, step, position) alone, so a text does not change with the rows that
happen to be computed, with the batch around it or with the order of evaluation.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..backend import F32, F64, I64


class Noise(Protocol):
    """Where the decoder gets its random numbers. `step` counts the passes that the sequence took part in."""

    def uniforms(self, sequence: int, step: int, positions: I64, vocab: int) -> F64:
        """U[0, 1) for the Gumbel step: float64 [len(positions), vocab]."""

    def confidences(self, sequence: int, step: int, positions: I64) -> F32:
        """U[0, 1) for random remasking and for drawing positions: float32 [len(positions)]."""

    def revokes(self, sequence: int, step: int, positions: I64) -> F32:
        """U[0, 1) for remasking committed tokens: float32 [len(positions)]."""


class SeededNoise:
    """Philox counters keyed by the seed (Salmon et al. 2011)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _generator(self, kind: int, sequence: int, step: int, position: int) -> np.random.Generator:
        counter = np.array([0, position, step, kind], np.uint64)
        return np.random.Generator(np.random.Philox(key=np.array([self.seed, sequence], np.uint64), counter=counter))

    def uniforms(self, sequence: int, step: int, positions: I64, vocab: int) -> F64:
        out = np.empty((len(positions), vocab))
        for row, position in zip(out, positions, strict=True):
            self._generator(1, sequence, step, int(position)).random(out=row)
        return out

    def confidences(self, sequence: int, step: int, positions: I64) -> F32:
        return self._scalars(2, sequence, step, positions)

    def revokes(self, sequence: int, step: int, positions: I64) -> F32:
        return self._scalars(3, sequence, step, positions)

    def _scalars(self, kind: int, sequence: int, step: int, positions: I64) -> F32:
        draws = [self._generator(kind, sequence, step, int(p)).random(dtype=np.float32) for p in positions]
        return np.array(draws, np.float32)
