/* Pieces that the AVX-512 GEMM kernels share. */
#ifndef DLLM_AVX512_H
#define DLLM_AVX512_H

#include <immintrin.h>

#include "row.h"

#define UNROLL _Pragma("GCC unroll 32")

enum { NR = 32, VECTORS = 2, LANES = 16 }; /* a panel is two vectors of 16 outputs wide */

/* Touches the next panel: every line of it when one tile covers it alone, a share of it otherwise. */
DLLM_INLINE const char *prefetch_next(const char *at, int step)
{
    _mm_prefetch(at, _MM_HINT_T1);
    if (step > 64)
        _mm_prefetch(at + 64, _MM_HINT_T1);
    return at + step;
}

DLLM_INLINE __mmask16 column_mask(int cols, int vector)
{
    int left = cols - vector * LANES;
    return left >= LANES ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
}

/* c = y + bias + residual for one vector of row i. */
DLLM_INLINE void store_outputs(const dllm_tile *t, int i, int vector, __mmask16 mask, __m512 y)
{
    int64_t at = i * t->ldc + vector * LANES;
    if (t->bias)
        y = _mm512_add_ps(y, _mm512_loadu_ps(t->bias + vector * LANES));
    if (t->residual)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, t->residual + at));
    _mm512_mask_storeu_ps(t->c + at, mask, y);
}

/* Four bytes of up to 16 rows: [rows][steps][4 bytes] -> [steps][mr][4 bytes]. */
static inline void interleave_words(const int32_t *rows, int64_t ld, int mr, int64_t steps, int32_t *to)
{
    if (mr == 1) {
        __builtin_memcpy(to, rows, (size_t)steps * 4);
        return;
    }
    for (int64_t k = 0; k < steps; k++, to += mr)
        for (int i = 0; i < mr; i++)
            to[i] = rows[i * ld + k];
}

/* out[g] = -128 * sum of the codes of group g. Groups are multiples of 64 codes, or one group; zeros follow k. */
static inline void start_at_zero_point(const int8_t *codes, int64_t k, int64_t group, int32_t *out)
{
    const __m512i ones = _mm512_set1_epi8(1);
    for (int64_t first = 0, g = 0; first < k; first += group, g++) {
        int64_t last = first + group < k ? first + group : k;
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = first; i < last; i += 64)
            sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(codes + i));
        out[g] = -128 * _mm512_reduce_add_epi32(sum);
    }
}

#endif
