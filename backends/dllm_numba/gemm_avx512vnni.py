"""int8 and int4 matrix product with AVX512-VNNI: the inner loops are written in LLVM IR, the rest in numba.

vpdpbusd multiplies 64 unsigned bytes by 64 signed bytes and adds groups of four products to 16 int32 lanes, with no
saturation. No loop in Python makes LLVM choose it, so an `@intrinsic` builds the loop around it.

Weights in memory: panels of 32 outputs, in steps of 4 inputs (128 bytes, two vectors of 16 outputs):

    panel p, step s:  output 32p: k = 4s .. 4s+3 | output 32p+1: k = 4s .. 4s+3 | ... | output 32p+31

With four bits a step has 8 inputs in as many bytes: k = 8s .. 8s+3 in their lower halves, 8s+4 .. 8s+7 in their upper
halves. They become bytes in registers, by `and` or by shift and `and`, which the processor does beside vpdpbusd.

A tile is 1 to 8 rows of activations by one panel. Its 8 x 2 accumulators stay in registers along all of K; each step
loads 2 vectors of weights and spreads 4 bytes of each row over a third (16 + 2 + 1 of 32 registers, + 3 for four bits;
with several groups 16 more hold the float sums, part of them on the stack while the inner loop runs). Eight chains of
additions are enough to start one vpdpbusd per cycle. A panel of K = 4096 is 128 KiB and stays in the second-level
cache while all tiles pass over it; they fetch the thread's next panel ahead, each a part of it.

Measured: docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import claim, compiled
from .kernel import Kernel
from .vnni import F32, I32, I64, VF32, VI32, load, multiply_add, number, prefetch, spread, store, unavailable

ROWS = 8  # rows of a tile at most
VECTORS = 2  # vectors of 16 outputs in a panel
COLUMNS = 16 * VECTORS
STEP = 4 * COLUMNS  # bytes of weights per step of 4 inputs, or of 8 with four bits


def as_bytes(b: ir.IRBuilder, stored: ir.Value, bits: int) -> list[ir.Value]:
    """Stored weights of one step -> one vector of bytes per 4 inputs."""
    if bits == 8:
        return [stored]
    low = ir.Constant(VI32, [0x0F0F0F0F] * 16)
    return [b.and_(stored, low), b.and_(b.lshr(stored, ir.Constant(VI32, [4] * 16)), low)]


def multiply(b, bits, rows, weights, codes, code_stride, offsets, steps, ahead, ahead_step):
    """Emit the loop over `steps` steps: -> rows x VECTORS vectors of int32, offsets + codes * weights."""
    inputs = 32 // bits  # of a step, and the bytes of codes that it reads of each row
    row = [b.add(codes, b.mul(code_stride, number(i))) for i in range(rows)]
    start = [spread(b, load(b, b.add(offsets, number(4 * i)), I32)) for i in range(rows)]
    before, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    s = b.phi(I64)
    acc = [[b.phi(VI32) for _ in range(VECTORS)] for _ in range(rows)]
    line = b.add(ahead, b.mul(s, ahead_step))
    for i in range(STEP // 64):
        prefetch(b, b.add(line, number(64 * i)))
    at, x_at = b.add(weights, b.mul(s, number(STEP))), b.mul(s, number(inputs))
    w = [as_bytes(b, load(b, b.add(at, number(64 * j)), VI32), bits) for j in range(VECTORS)]
    result = [list(vectors) for vectors in acc]
    for part in range(inputs // 4):
        for i in range(rows):
            x = spread(b, load(b, b.add(b.add(row[i], x_at), number(4 * part)), I32))
            for j in range(VECTORS):
                result[i][j] = multiply_add(b, result[i][j], w[j][part], x)
    for i in range(rows):
        for j in range(VECTORS):
            acc[i][j].add_incoming(start[i], before)
            acc[i][j].add_incoming(result[i][j], loop)
    following = b.add(s, number(1))
    s.add_incoming(number(0), before)
    s.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, steps), loop, after)
    b.position_at_end(after)
    return result


class Tile(NamedTuple):
    """Where one tile of `linear` lies: addresses, distances in bytes, and in steps."""

    weights: ir.Value
    codes: ir.Value  # of the first row
    code_stride: ir.Value  # from row to row
    offsets: ir.Value
    offset_stride: ir.Value  # from group to group
    scales: ir.Value  # COLUMNS float32 per group
    row_scale: ir.Value
    bias: ir.Value
    out: ir.Value
    out_stride: ir.Value
    steps: ir.Value
    group_steps: ir.Value
    ahead: ir.Value  # what to fetch early
    ahead_step: ir.Value


def linear_rows(b: ir.IRBuilder, bits: int, rows: int, t: Tile) -> None:
    """Emit a tile: total = sum over groups of accumulator * scale; out = total * row scale + bias.

    Multiplied, then added, never fused: `dllm_core.quant.rescale` rounds that way, and the result is the same float32.
    """
    before, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    s, offsets, scales = b.phi(I64), b.phi(I64), b.phi(I64)  # the group's first step, its offsets and scales
    total = [[b.phi(VF32) for _ in range(VECTORS)] for _ in range(rows)]
    left = b.sub(t.steps, s)
    steps = b.select(b.icmp_signed("<", left, t.group_steps), left, t.group_steps)
    weights, codes = b.add(t.weights, b.mul(s, number(STEP))), b.add(t.codes, b.mul(s, number(32 // bits)))
    ahead = b.add(t.ahead, b.mul(s, t.ahead_step))
    acc = multiply(b, bits, rows, weights, codes, t.code_stride, offsets, steps, ahead, t.ahead_step)
    scale = [load(b, b.add(scales, number(64 * j)), VF32) for j in range(VECTORS)]
    result = [
        [b.fadd(total[i][j], b.fmul(b.sitofp(acc[i][j], VF32), scale[j])) for j in range(VECTORS)] for i in range(rows)
    ]
    for old, new in zip(chain(*total), chain(*result), strict=True):
        old.add_incoming(ir.Constant(VF32, None), before)
        old.add_incoming(new, b.block)
    following = b.add(s, t.group_steps)
    for phi, first, then in (
        (s, number(0), following),
        (offsets, t.offsets, b.add(offsets, t.offset_stride)),
        (scales, t.scales, b.add(scales, number(4 * COLUMNS))),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(then, b.block)
    b.cbranch(b.icmp_signed("<", following, t.steps), loop, after)
    b.position_at_end(after)
    bias = [load(b, b.add(t.bias, number(64 * j)), VF32) for j in range(VECTORS)]
    for i in range(rows):
        row_scale = spread(b, load(b, b.add(t.row_scale, number(4 * i)), F32))
        out = b.add(t.out, b.mul(t.out_stride, number(i)))
        for j in range(VECTORS):
            store(b, b.fadd(b.fmul(result[i][j], row_scale), bias[j]), b.add(out, number(64 * j)))


class IntegerTile(NamedTuple):
    """Where one group of one tile of `accumulate` lies."""

    weights: ir.Value
    codes: ir.Value
    code_stride: ir.Value
    offsets: ir.Value
    out: ir.Value  # int32
    out_stride: ir.Value
    steps: ir.Value


def accumulate_rows(b: ir.IRBuilder, bits: int, rows: int, t: IntegerTile) -> None:
    """Emit a tile that ends where the integers are known."""
    acc = multiply(b, bits, rows, t.weights, t.codes, t.code_stride, t.offsets, t.steps, t.weights, number(0))
    for i in range(rows):
        for j in range(VECTORS):
            store(b, acc[i][j], b.add(b.add(t.out, b.mul(t.out_stride, number(i))), number(64 * j)))


def tile_function(kind: type, emit: Callable[..., None], bits: int):
    """A function for compiled code, f(rows, tuple of the fields of `kind`): a jump to `emit` for that many rows."""

    @intrinsic
    def tile(typingctx, rows, fields):
        def codegen(context, builder, signature, arguments):
            rows, packed = arguments
            where = kind(*cgutils.unpack_tuple(builder, packed))
            end = builder.append_basic_block()
            choice = builder.switch(rows, end)
            for count in range(1, ROWS + 1):
                block = builder.append_basic_block()
                choice.add_case(number(count), block)
                builder.position_at_end(block)
                emit(builder, bits, count, where)
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(rows, fields), codegen

    return tile


linear_tile_8bit, linear_tile_4bit = (tile_function(Tile, linear_rows, bits) for bits in (8, 4))
accumulate_tile_8bit, accumulate_tile_4bit = (tile_function(IntegerTile, accumulate_rows, bits) for bits in (8, 4))


# ---- drivers --------------------------------------------------------------------------------------------


@compiled
def address(array):
    return np.int64(array.ctypes.data)  # signed: numba turns int64 + uint64 into a float


@compiled
def linear(claims, bits, codes, offsets, row_scale, panels, scales, bias, group, out):
    """out[R, N] = row_scale * sum over groups of (integer product * scales) + bias, for the panels it claims."""
    edge = np.empty((ROWS, COLUMNS), np.float32)  # stands in for the output where a panel reaches beyond N
    p = claim(claims)
    while p < claims[1]:
        following = claim(claims)
        ahead = following if following < claims[1] else p
        panel(p, ahead, bits, codes, offsets, row_scale, panels, scales, bias, group, out, edge)
        p = following


@compiled
def panel(p, ahead, bits, codes, offsets, row_scale, panels, scales, bias, group, out, edge):
    """The columns of `out` that belong to panel p. Panel `ahead` is fetched meanwhile."""
    rows, n = out.shape
    steps, groups = panels.shape[1], offsets.shape[0]
    tiles = (rows + ROWS - 1) // ROWS
    panel_bytes = steps * STEP
    # One or two rows wait for memory in any case, and there the processor's own prefetcher does better.
    ahead_step = max(STEP // tiles, 64) if rows > 3 and ahead != p else 0
    width = min(COLUMNS, n - p * COLUMNS)
    whole = width == COLUMNS
    weights = address(panels) + p * panel_bytes
    for t in range(tiles):
        r = t * rows // tiles  # rows in nearly equal tiles
        count = (t + 1) * rows // tiles - r
        where = (
            weights,
            address(codes) + r * codes.shape[1],
            codes.shape[1],
            address(offsets) + 4 * r,
            4 * offsets.shape[1],
            address(scales) + p * groups * COLUMNS * 4,
            address(row_scale) + 4 * r,
            address(bias) + p * COLUMNS * 4,
            address(out) + 4 * (r * n + p * COLUMNS) if whole else address(edge),
            4 * n if whole else 4 * COLUMNS,
            steps,
            group * bits // 32,
            address(panels) + ahead * panel_bytes + t * panel_bytes // tiles if ahead_step else weights,
            ahead_step,
        )
        if bits == 8:
            linear_tile_8bit(count, where)
        else:
            linear_tile_4bit(count, where)
        if not whole:
            for i in range(count):
                for j in range(width):
                    out[r + i, p * COLUMNS + j] = edge[i, j]


@compiled
def accumulate(bits, codes, offsets, panels, group, out):
    """The integers behind `linear`: out int32 [G, R, P * COLUMNS]."""
    groups, rows, columns = out.shape
    steps, group_steps = panels.shape[1], group * bits // 32
    for g in range(groups):
        for p in range(panels.shape[0]):
            for r in range(0, rows, ROWS):
                where = (
                    address(panels) + (p * steps + g * group_steps) * STEP,
                    address(codes) + r * codes.shape[1] + g * group,
                    codes.shape[1],
                    address(offsets) + 4 * (g * offsets.shape[1] + r),
                    address(out) + 4 * ((g * rows + r) * columns + p * COLUMNS),
                    4 * columns,
                    min(group_steps, steps - g * group_steps),
                )
                if bits == 8:
                    accumulate_tile_8bit(min(ROWS, rows - r), where)
                else:
                    accumulate_tile_4bit(min(ROWS, rows - r), where)


KERNEL = Kernel(
    isa="avx512vnni",
    columns=COLUMNS,
    depth={8: 4, 4: 8},
    linear=linear,
    accumulate=accumulate,
    unavailable=unavailable,
)
