/* UNROLL for (...): a loop of known count is written out, so that an array it indexes lives in registers. */
#ifndef DLLM_UNROLL_H
#define DLLM_UNROLL_H

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif
