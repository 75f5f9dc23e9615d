"""How many tokens each step commits. Small pure functions."""

from __future__ import annotations


def even_split(total: int, parts: int) -> list[int]:
    """`total` over `parts`, as evenly as it goes, the larger shares first: 24 over 7 -> 4 4 4 3 3 3 3.

    LLaDA's get_num_transfer_tokens.
    """
    small, rest = divmod(total, parts)
    return [small + 1] * rest + [small] * (parts - rest)


def spread_steps(total: int, lengths: list[int]) -> list[int]:
    """`total` steps over blocks of these lengths: at least one each, then always to the block with the most tokens a
    step, the earlier one on ties. As many steps as tokens make one token a step; LLaDA's equal shares where blocks are
    equal and the division has no rest.
    """
    steps = [1] * len(lengths)
    for _ in range(total - len(lengths)):
        slowest = max(range(len(lengths)), key=lambda b: lengths[b] / steps[b])
        steps[slowest] += 1
    return steps


def block_bounds(length: int, block_length: int) -> list[tuple[int, int]]:
    """[start, stop) of every block of a canvas, from 0; the last one may be shorter."""
    return [(at, min(at + block_length, length)) for at in range(0, length, block_length)]
