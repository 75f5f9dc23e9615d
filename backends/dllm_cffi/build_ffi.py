"""Writes the source of the module `dllm_cffi._native`: build_ffi.py HEADER OUTPUT.

The declarations are cut from the C header between its two marker comments, so the two cannot drift apart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cffi

BEGIN, END = "/* cdef-begin */", "/* cdef-end */"


def main(header: str, output: str) -> None:
    declarations = Path(header).read_text().split(BEGIN)[1].split(END)[0]
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    ffi.set_source("dllm_cffi._native", '#include "dllm.h"')
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
