/* Pieces that the AVX2 GEMM kernels share. */
#ifndef DLLM_AVX2_H
#define DLLM_AVX2_H

#include <immintrin.h>

#include "row.h"

#define UNROLL _Pragma("GCC unroll 16")

enum { MR = 6, NR = 16, VECTORS = 2, LANES = 8 }; /* a panel is two vectors of 8 outputs wide */

/* Touches the next panel: every line of it when one tile covers it alone, a share of it otherwise. */
DLLM_INLINE const char *prefetch_next(const char *at, int step) {
    _mm_prefetch(at, _MM_HINT_T1);
    return at + step;
}

DLLM_INLINE __m256i column_mask(int cols, int vector) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(cols - vector * LANES), lane);
}

/* c = y + bias + residual for one vector of row i. */
DLLM_INLINE void store_outputs(const dllm_tile *t, int i, int vector, __m256i mask, __m256 y) {
    int64_t at = i * t->ldc + vector * LANES;
    if (t->bias)
        y = _mm256_add_ps(y, _mm256_loadu_ps(t->bias + vector * LANES));
    if (t->residual)
        y = _mm256_add_ps(y, _mm256_maskload_ps(t->residual + at, mask));
    _mm256_maskstore_ps(t->c + at, mask, y);
}

#endif
