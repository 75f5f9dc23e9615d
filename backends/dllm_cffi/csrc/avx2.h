/* Pieces that the AVX2 GEMM kernels share. */
#ifndef DLLM_AVX2_H
#define DLLM_AVX2_H

#include <immintrin.h>

#include "row.h"
#include "unroll.h"

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

/* Scales the integer sums of group g and adds them to the float sums in memory; stores them for checks. */
DLLM_INLINE void add_group(const int mr, const dllm_tile *t, int64_t group, const __m256i *sum,
                           const float *b_scale, float *total) {
    UNROLL for (int i = 0; i < 2 * mr; i++) {
        const __m256 scale = _mm256_loadu_ps(b_scale + i % 2 * LANES);
        const __m256 y = _mm256_load_ps(total + i * LANES);
        _mm256_store_ps(total + i * LANES, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), scale, y));
    }
    for (int i = 0; t->acc && i < 2 * mr; i++)
        _mm256_maskstore_epi32(t->acc + group * t->acc_group + i / 2 * t->ldc + i % 2 * LANES,
                               column_mask(t->cols, i % 2), sum[i]);
}

/* c = total * a_scale + bias + residual. */
DLLM_INLINE void store_totals(const int mr, const dllm_tile *t, const float *total) {
    for (int j = 0; j < VECTORS; j++) {
        const __m256i mask = column_mask(t->cols, j);
        for (int i = 0; i < mr; i++) {
            const __m256 y = _mm256_load_ps(total + (2 * i + j) * LANES);
            store_outputs(t, i, j, mask, _mm256_mul_ps(y, _mm256_set1_ps(t->a_scale[i])));
        }
    }
}

#endif
