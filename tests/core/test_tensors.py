"""Stored arrays as float32: what chunks hold, and on how many threads they are widened."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dllm_core import tensors
from dllm_core.tensors import BF16, CHUNK, Tensor

STORED = {"F32": np.float32, "F16": np.float16, BF16: np.uint16}


def stored(dtype: str, *shape: int) -> tuple[Tensor, np.ndarray]:
    """A tensor and its values in float32."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    if dtype == BF16:
        upper = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Tensor("t", upper, dtype), (upper.astype(np.uint32) << 16).view(np.float32)
    narrow = values.astype(STORED[dtype])
    return Tensor("t", narrow, dtype), narrow.astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1000, 1100), (3, CHUNK), (CHUNK + 7,), (700, 40, 50)])
def test_chunks_are_the_rows_in_order(shape, dtype, threads):
    tensor, values = stored(dtype, *shape)
    at = 0
    for first, part in tensor.chunks(threads):
        assert first == at
        assert part.flags.c_contiguous
        assert len(part) <= 64 or part.size <= CHUNK
        np.testing.assert_array_equal(part, values[at : at + len(part)], strict=True)
        at += len(part)
    assert at == len(values)


def test_rows_and_whole_arrays():
    for dtype in STORED:
        tensor, values = stored(dtype, 5, 3)
        np.testing.assert_array_equal(tensor.rows(1, 4), values[1:4], strict=True)
        np.testing.assert_array_equal(tensor.array(), values, strict=True)
        assert not np.shares_memory(tensor.array(), tensor.raw)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_as_many_threads_widen_as_were_given(threads, monkeypatch):
    """They meet in every chunk; none is left when the caller gives up in the middle."""
    before, used, widen = set(threading.enumerate()), set(), tensors.widen
    together = threading.Barrier(threads)

    def meet(*arguments):
        used.add(threading.current_thread())
        together.wait(60)
        return widen(*arguments)

    monkeypatch.setattr(tensors, "widen", meet)
    chunks = stored(BF16, 3000, 1024)[0].chunks(threads)
    next(chunks)
    next(chunks)
    assert len(used) == threads
    chunks.close()
    assert set(threading.enumerate()) <= before
