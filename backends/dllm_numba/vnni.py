"""Pieces of LLVM IR for kernels on vectors of 16 lanes; addresses are int64. Changes: see jit.py about its cache."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target

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


def multiply_add(b: ir.IRBuilder, sums: ir.Value, weights: ir.Value, codes: ir.Value) -> ir.Value:
    """vpdpbusd on three vectors of int32, of which the last two are bytes: unsigned, signed."""
    operand = operand_type()
    vpdpbusd = cgutils.get_or_insert_function(b.module, ir.FunctionType(VI32, [VI32, operand, operand]), NAME)
    return b.call(vpdpbusd, [sums, b.bitcast(weights, operand), b.bitcast(codes, operand)])
