"""int8 matrix product with AVX512-VNNI: the inner loops are written in LLVM IR, the rest in numba.

vpdpbusd multiplies 64 unsigned bytes by 64 signed bytes and adds groups of four products to 16 int32 lanes, with no
saturation. No loop in Python makes LLVM choose it, so an `@intrinsic` builds the loop around it.

Weights in memory: panels of 32 outputs, in steps of 4 inputs (128 bytes, two vectors of 16 outputs):

    panel p, step s:  output 32p: k = 4s .. 4s+3 | output 32p+1: k = 4s .. 4s+3 | ... | output 32p+31

A tile is 1 to 8 rows of activations by one panel. Its 8 x 2 accumulators stay in registers along all of K; each step
loads 2 vectors of weights and spreads 4 bytes of each row over a third (16 + 2 + 1 of 32 registers; with several
groups 16 more hold the float sums, part of them on the stack while the inner loop runs). Eight chains of
additions are enough to start one vpdpbusd per cycle. A panel of K = 4096 is 128 KiB and stays in the second-level
cache while all tiles pass over it; they fetch the next panel ahead, each a part of it.

Share of the measured vpdpbusd peak on Zen 4, one thread, N = K = 4096, cold weights, with quantisation of the
activations and float results; one scale per output / groups of 128: 93 / 90 % at 128 rows, 92 / 89 % at 32,
91 / 88 % at 8, 13 % at 1, where memory is the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .jit import compiled, compiled_parallel
from .kernel import Kernel

ROWS = 8  # rows of a tile at most
VECTORS = 2  # vectors of 16 outputs in a panel
COLUMNS = 16 * VECTORS
STEP = 4 * COLUMNS  # bytes of weights per step of 4 inputs

NAME = "llvm.x86.avx512.vpdpbusd.512"
I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
VI32, VF32 = ir.VectorType(I32, 16), ir.VectorType(F32, 16)


@cache
def operand_type(name: str = NAME) -> ir.Type | None:
    """The type of vpdpbusd's byte operands in this LLVM: bytes since 22, int32 lanes before. None: neither works.

    Found by trying: the one whose call is valid and becomes that instruction.
    """
    machine = llvm.Target.from_default_triple().create_target_machine(features="+avx512f,+avx512vnni")
    for operand in (ir.VectorType(I8, 64), VI32):
        module = ir.Module()
        callee = ir.Function(module, ir.FunctionType(VI32, [VI32, operand, operand]), name)
        caller = ir.Function(module, callee.function_type, "caller")
        b = ir.IRBuilder(caller.append_basic_block())
        b.ret(b.call(callee, caller.args))
        try:
            parsed = llvm.parse_assembly(str(module))
            parsed.verify()
        except RuntimeError:
            continue
        if "vpdpbusd\t" in machine.emit_assembly(parsed):
            return operand
    return None


def unavailable() -> str | None:
    """Why this kernel cannot run here. Asks for the features that numba compiles for, not only those of the CPU."""
    if numba.config.DISABLE_JIT:
        return "numba's compiler is switched off (NUMBA_DISABLE_JIT)"
    if "+avx512vnni" not in cpu_target.target_context.codegen().magic_tuple()[2].split(","):
        return "the CPU, or the target that numba compiles for, has no AVX512-VNNI"
    return None if operand_type() else f"LLVM {llvm.llvm_version_info[0]} does not know {NAME}"


# ---- pieces of IR; addresses are int64 ------------------------------------------------------------------


def number(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def load(b: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return b.load(b.inttoptr(address, kind.as_pointer()), align=4)


def store(b: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=4)


def spread(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The scalar `value` in all 16 lanes of a vector."""
    kind = ir.VectorType(value.type, 16)
    lane0 = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(lane0, ir.Constant(kind, ir.Undefined), ir.Constant(VI32, None))


def prefetch(b: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for a cache line into the second level (locality 2: prefetcht1), for reading."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    read, locality, data = (ir.Constant(I32, v) for v in (0, 2, 1))
    b.call(function, [b.inttoptr(address, I8.as_pointer()), read, locality, data])


def multiply(b, rows, weights, codes, code_stride, offsets, steps, ahead, ahead_step):
    """Emit the loop over `steps` steps of 4 inputs: -> rows x VECTORS vectors of int32, offsets + codes * weights."""
    operand = operand_type()
    vpdpbusd = cgutils.get_or_insert_function(b.module, ir.FunctionType(VI32, [VI32, operand, operand]), NAME)
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
    at = b.add(weights, b.mul(s, number(STEP)))
    w = [b.bitcast(load(b, b.add(at, number(64 * j)), VI32), operand) for j in range(VECTORS)]
    result = []
    for i in range(rows):
        x = b.bitcast(spread(b, load(b, b.add(row[i], b.mul(s, number(4))), I32)), operand)
        result.append([b.call(vpdpbusd, [acc[i][j], w[j], x]) for j in range(VECTORS)])
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
    """Where one tile of `linear` lies: addresses, distances in bytes, and steps of 4 inputs."""

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


def linear_rows(b: ir.IRBuilder, rows: int, t: Tile) -> None:
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
    weights, codes = b.add(t.weights, b.mul(s, number(STEP))), b.add(t.codes, b.mul(s, number(4)))
    ahead = b.add(t.ahead, b.mul(s, t.ahead_step))
    acc = multiply(b, rows, weights, codes, t.code_stride, offsets, steps, ahead, t.ahead_step)
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


def accumulate_rows(b: ir.IRBuilder, rows: int, t: IntegerTile) -> None:
    """Emit a tile that ends where the integers are known."""
    acc = multiply(b, rows, t.weights, t.codes, t.code_stride, t.offsets, t.steps, t.weights, number(0))
    for i in range(rows):
        for j in range(VECTORS):
            store(b, acc[i][j], b.add(b.add(t.out, b.mul(t.out_stride, number(i))), number(64 * j)))


def for_each_row_count(b: ir.IRBuilder, rows: ir.Value, emit: Callable[[int], None]) -> None:
    """Emit `emit(1)` .. `emit(ROWS)` and a jump to the one for the run-time value `rows`."""
    end = b.append_basic_block()
    choice = b.switch(rows, end)
    for count in range(1, ROWS + 1):
        block = b.append_basic_block()
        choice.add_case(number(count), block)
        b.position_at_end(block)
        emit(count)
        b.branch(end)
    b.position_at_end(end)


def tile_function(kind: type, emit: Callable[..., None]):
    """A function for compiled code, f(rows, tuple of the fields of `kind`), made of `emit`."""

    @intrinsic
    def tile(typingctx, rows, fields):
        def codegen(context, builder, signature, arguments):
            count, packed = arguments
            where = kind(*cgutils.unpack_tuple(builder, packed))
            for_each_row_count(builder, count, lambda n: emit(builder, n, where))
            return context.get_dummy_value()

        return types.void(rows, fields), codegen

    return tile


linear_tile = tile_function(Tile, linear_rows)
accumulate_tile = tile_function(IntegerTile, accumulate_rows)


# ---- drivers --------------------------------------------------------------------------------------------


@compiled
def address(array):
    return np.int64(array.ctypes.data)  # signed: numba turns int64 + uint64 into a float


@compiled
def linear(first, last, codes, offsets, row_scale, panels, scales, bias, group, out):
    """out[R, N] = row_scale * sum over groups of (integer product * scales) + bias, panels first .. last of it."""
    rows, n = out.shape
    steps, groups = panels.shape[1], offsets.shape[0]
    tiles = (rows + ROWS - 1) // ROWS
    panel_bytes = steps * STEP
    # One or two rows wait for memory in any case, and there the processor's own prefetcher does better.
    ahead_step = max(STEP // tiles, 64) if rows > 3 else 0
    edge = np.empty((ROWS, COLUMNS), np.float32)  # stands in for the output where a panel reaches beyond N
    for p in range(first, last):
        width = min(COLUMNS, n - p * COLUMNS)
        weights = address(panels) + p * panel_bytes
        for t in range(tiles):
            r = t * rows // tiles  # rows in nearly equal tiles
            count = (t + 1) * rows // tiles - r
            whole = width == COLUMNS
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
                group // 4,
                weights + panel_bytes + t * panel_bytes // tiles if ahead_step else weights,
                ahead_step,
            )
            linear_tile(count, where)
            if not whole:
                for i in range(count):
                    for j in range(width):
                        out[r + i, p * COLUMNS + j] = edge[i, j]


@compiled_parallel
def linear_parallel(parts, codes, offsets, row_scale, panels, scales, bias, group, out):
    count = panels.shape[0]
    for part in prange(parts):
        i = np.int64(part)
        a, z = i * count // parts, (i + 1) * count // parts
        linear(a, z, codes, offsets, row_scale, panels, scales, bias, group, out)


@compiled
def accumulate(codes, offsets, panels, group, out):
    """The integers behind `linear`: out int32 [G, R, P * COLUMNS]."""
    groups, rows, columns = out.shape
    steps = panels.shape[1]
    for g in range(groups):
        s = g * (group // 4)
        for p in range(panels.shape[0]):
            for r in range(0, rows, ROWS):
                where = (
                    address(panels) + (p * steps + s) * STEP,
                    address(codes) + r * codes.shape[1] + 4 * s,
                    codes.shape[1],
                    address(offsets) + 4 * (g * offsets.shape[1] + r),
                    address(out) + 4 * ((g * rows + r) * columns + p * COLUMNS),
                    4 * columns,
                    min(group // 4, steps - s),
                )
                accumulate_tile(min(ROWS, rows - r), where)


KERNEL = Kernel(
    isa="avx512vnni",
    columns=COLUMNS,
    depth=4,
    panel_shape=lambda k4: (k4, COLUMNS, 4),
    by_output=lambda panels: panels.view(np.uint32)[..., 0].transpose(0, 2, 1),
    linear=linear,
    linear_parallel=linear_parallel,
    accumulate=accumulate,
    unavailable=unavailable,
)
