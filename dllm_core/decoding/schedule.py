"""How many tokens each step commits. Small pure functions."""

from __future__ import annotations


def even_split(total: int, parts: int) -> list[int]:
    """`total` over `parts`, as evenly as it goes, the larger shares first: 24 over 7 -> 4 4 4 3 3 3 3.

    LLaDA's get_num_transfer_tokens, and its steps-per-block where the division has no rest.
    """
    small, rest = divmod(total, parts)
    return [small + 1] * rest + [small] * (parts - rest)


def block_bounds(length: int, block_length: int) -> list[tuple[int, int]]:
    """[start, stop) of every block of a canvas, from 0; the last one may be shorter."""
    return [(at, min(at + block_length, length)) for at in range(0, length, block_length)]
