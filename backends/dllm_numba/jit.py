"""How this package compiles: options, and the cache on disk.

Every function is compiled at its first call and stored by numba in `NUMBA_CACHE_DIR`, else next to its source, else
in the user's cache directory; where none of them can be written it is compiled in every process. The cache notices
a change of the function's own file and of the CPU, but not of a file it imports from. So compiled code calls only
compiled code of its own file, and the few builders of instructions that it imports (`claim`, vnni.py) are not to be
changed without changing the kernels' files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled without the GIL, with numpy's division rules and without reordering of float sums."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no directory it may write to
        return numba.njit(**options)(function)


@intrinsic
def claim(typingctx, counter):
    """claim(counter int64 [any]) -> counter[0], which becomes one more: no two threads get the same number."""

    def codegen(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), codegen
