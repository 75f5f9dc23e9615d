/* The instruction of the AVX-VNNI row.
 *
 * No CPU with AVX-VNNI was at hand, and emulators lack it. The tests build the row with DLLM_EVEX: the same
 * source with the instruction of the same name that AVX-512 encodes differently (tests/native/run.sh). */
#ifndef DLLM_AVXVNNI_H
#define DLLM_AVXVNNI_H

#include <immintrin.h>

#include "row.h"

#ifdef DLLM_EVEX
#define VPDPBUSD "vpdpbusd"
#else
#define VPDPBUSD "%{vex%} vpdpbusd"
#endif

/* sum += b (unsigned bytes) . x (signed bytes), by fours. In assembly because gcc 12, given the intrinsic,
 * loads all activations first and has no registers left for the sums. */
DLLM_INLINE __m256i dot(__m256i sum, __m256i b, __m256i x) {
    __asm__(VPDPBUSD " %2, %1, %0" : "+x"(sum) : "x"(b), "x"(x));
    return sum;
}

#endif
