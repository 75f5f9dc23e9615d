/* Pieces that the AVX-512 GEMM kernels share. */
#ifndef DLLM_AVX512_H
#define DLLM_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "row.h"
#include "unroll.h"

enum { NR = 32, VECTORS = 2, LANES = 16 }; /* a panel is two vectors of 16 outputs wide */

/* Touches two lines of the next panel. With several tiles per panel, each covers a share and touches lines
 * often. */
DLLM_INLINE const char *prefetch_next(const char *at, int step) {
    _mm_prefetch(at, _MM_HINT_T1);
    _mm_prefetch(at + 64, _MM_HINT_T1);
    return at + step;
}

/* Activations to come. Where all rows together exceed the second-level cache, the processor alone is late. */
DLLM_INLINE void prefetch_rows(const void *a) {
    _mm_prefetch((const char *)a + 4096, _MM_HINT_T0);
}

/* sum += b (unsigned bytes) . x (signed bytes), by fours. In assembly because gcc 12, given the intrinsic,
 * copies the sums between registers and spills them: a third of the speed. */
DLLM_INLINE __m512i dot(__m512i sum, __m512i b, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(x));
    return sum;
}

DLLM_INLINE __mmask16 column_mask(int cols, int vector) {
    int left = cols - vector * LANES;
    return left >= LANES ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
}

/* c = total (* a_scale) + bias + residual for a tile of float sums. Out of the kernels, whose registers are
 * full. */
static inline void store_outputs(const dllm_tile *t, const __m512 *total) {
    for (int j = 0; j < VECTORS; j++) {
        const __mmask16 mask = column_mask(t->cols, j);
        const __m512 bias = t->bias ? _mm512_loadu_ps(t->bias + j * LANES) : _mm512_setzero_ps();
        for (int i = 0; i < t->mr; i++) {
            const int64_t at = i * t->ldc + j * LANES;
            __m512 y = total[VECTORS * i + j];
            if (t->a_scale)
                y = _mm512_mul_ps(y, _mm512_set1_ps(t->a_scale[i]));
            if (t->bias)
                y = _mm512_add_ps(y, bias);
            if (t->residual)
                y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, t->residual + at));
            _mm512_mask_storeu_ps(t->c + at, mask, y);
        }
    }
}

/* The integer sums of group g, for checks. */
static inline void store_sums(const dllm_tile *t, int64_t group, const __m512i *sum) {
    for (int i = 0; i < t->mr; i++)
        for (int j = 0; j < VECTORS; j++)
            _mm512_mask_storeu_epi32(t->acc + group * t->acc_group + i * t->ldc + j * LANES,
                                     column_mask(t->cols, j), sum[VECTORS * i + j]);
}

/* Rows of 16 words become columns: afterwards word i of row j is word j of row i. */
DLLM_INLINE void transpose(__m512i row[16]) {
    __m512i pair[16], quad[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        pair[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        pair[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) { /* lane l of quad[i + c]: word 4 l + c of rows i..i+3 */
        quad[i] = _mm512_unpacklo_epi64(pair[i], pair[i + 2]);
        quad[i + 1] = _mm512_unpackhi_epi64(pair[i], pair[i + 2]);
        quad[i + 2] = _mm512_unpacklo_epi64(pair[i + 1], pair[i + 3]);
        quad[i + 3] = _mm512_unpackhi_epi64(pair[i + 1], pair[i + 3]);
    }
    UNROLL for (int c = 0; c < 4; c++) {
        const __m512i even0 = _mm512_shuffle_i32x4(quad[c], quad[4 + c], 0x88);
        const __m512i even1 = _mm512_shuffle_i32x4(quad[8 + c], quad[12 + c], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(quad[c], quad[4 + c], 0xdd);
        const __m512i odd1 = _mm512_shuffle_i32x4(quad[8 + c], quad[12 + c], 0xdd);
        row[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        row[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        row[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        row[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
}

/* Words of 4 bytes of up to 16 rows: [mr][steps] -> [steps][mr]. */
static inline void interleave_words(const int32_t *rows, int64_t ld, int mr, int64_t steps, int32_t *to) {
    const __mmask16 mask = (__mmask16)((1u << mr) - 1);
    int64_t k = mr == 1 ? steps : 0;
    if (mr == 1)
        memcpy(to, rows, (size_t)steps * sizeof *to);
    for (; k + 16 <= steps; k += 16) {
        __m512i row[16];
        UNROLL for (int i = 0; i < 16; i++) {
            row[i] = _mm512_loadu_si512(rows + (i < mr ? i : mr - 1) * ld + k);
        }
        transpose(row);
        UNROLL for (int i = 0; i < 16; i++) {
            _mm512_mask_storeu_epi32(to + (k + i) * mr, mask, row[i]);
        }
    }
    for (; k < steps; k++)
        for (int i = 0; i < mr; i++)
            to[k * mr + i] = rows[i * ld + k];
}

/* out[g] = -zero_point * sum of the codes of group g. Groups are multiples of 64 codes, or one group; zeros
 * follow k. */
static inline void start_at(int zero_point, const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    const __m512i ones = _mm512_set1_epi8(1);
    for (int64_t first = 0, g = 0; first < k; first += group, g++) {
        int64_t last = first + group < k ? first + group : k;
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = first; i < last; i += 64)
            sum = dot(sum, ones, _mm512_loadu_si512(codes + i));
        out[g] = -zero_point * _mm512_reduce_add_epi32(sum);
    }
}

#endif
