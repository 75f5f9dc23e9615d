"""How many tokens each step commits. Small pure functions."""

from __future__ import annotations

import itertools
import math

import numpy as np


def even_split(total: int, parts: int) -> list[int]:
    """`total` over `parts`, as evenly as it goes, the larger shares first: 24 over 7 -> 4 4 4 3 3 3 3.

    LLaDA's get_num_transfer_tokens.
    """
    small, rest = divmod(total, parts)
    return [small + 1] * rest + [small] * (parts - rest)


def spread_steps(total: int, lengths: list[int]) -> list[int]:
    """`total` steps over blocks with so many tokens to fill: at least one each, none where there is nothing to fill,
    then always to the block with the most tokens a step, the earlier one on ties. As many steps as tokens make one
    token a step; LLaDA's equal shares where blocks are equal and the division has no rest.
    """
    steps = [min(length, 1) for length in lengths]
    for _ in range(total - sum(steps) if any(lengths) else 0):
        slowest = max(range(len(lengths)), key=lambda b: lengths[b] / max(steps[b], 1))
        steps[slowest] += 1
    return steps


def cosine_split(total: int, parts: int) -> list[int]:
    """Few tokens early, many late: after i steps, total * cos(pi/2 * i / parts) masks remain.

    MaskGIT (Chang et al. 2022).
    """
    left = [math.floor(total * math.cos(math.pi / 2 * i / parts) + 1e-9) for i in range(parts)] + [0]
    left[0] = total
    return [a - b for a, b in itertools.pairwise(left)]


def timestep_share(step: int, steps: int, eps: float) -> np.float32:
    """1 - t[step + 1] / t[step] of Dream's timesteps, float32 linspace(1, eps, steps + 1)."""
    t = np.linspace(1.0, eps, steps + 1).astype(np.float32)
    return np.float32(1) - t[step + 1] / t[step]


def timestep_count(masks: int, step: int, steps: int, eps: float) -> int:
    """How many of `masks` Dream commits at `step`: a float32 product, truncated; all of them at the last step.

    Because eps > 0 the count is usually one short of masks / steps, and the last step takes the rest.
    """
    if step >= steps - 1:
        return masks
    return int(np.float32(masks) * timestep_share(step, steps, eps))


def block_bounds(length: int, block_length: int) -> list[tuple[int, int]]:
    """[start, stop) of every block of a canvas, from 0; the last one may be shorter."""
    return [(at, min(at + block_length, length)) for at in range(0, length, block_length)]
