/* The instruction of the AVX-VNNI row.
 *
 * No CPU with AVX-VNNI was at hand, and emulators lack it. The tests build the row with DLLM_EVEX: the same
 * source with the instruction of the same name that AVX-512 encodes differently (tests/native/run.sh). */
#ifndef DLLM_AVXVNNI_H
#define DLLM_AVXVNNI_H

#include <immintrin.h>
#include <string.h>

#include "row.h"
#include "unroll.h"

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

/* Words of four codes of mr rows: [mr][words] -> [words][mr]. */
static inline void interleave_words(const int8_t *codes, int64_t ld, int mr, int64_t words, int8_t *to) {
    for (int64_t k = 0; k < words; k++)
        for (int i = 0; i < mr; i++, to += 4)
            memcpy(to, codes + i * ld + 4 * k, 4);
}

/* out[g] = -zero_point * sum of the codes of group g. Groups are multiples of 64 codes, or one group; zeros
 * follow k. */
static inline void start_at(int zero_point, const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    const __m256i ones = _mm256_set1_epi8(1);
    for (int64_t first = 0, g = 0; first < k; first += group, g++) {
        int64_t last = first + group < k ? first + group : k;
        __m256i sum = _mm256_setzero_si256();
        int32_t lanes[8], total = 0;
        for (int64_t i = first; i < last; i += 32)
            sum = dot(sum, ones, _mm256_loadu_si256((const __m256i *)(codes + i)));
        _mm256_storeu_si256((__m256i *)lanes, sum);
        for (int i = 0; i < 8; i++)
            total += lanes[i];
        out[g] = -zero_point * total;
    }
}

/* Sums [mr][2] += weights of two vectors of outputs x the rows' words a [mr]. */
DLLM_INLINE void add_products(const int mr, __m256i *sum, __m256i b0, __m256i b1, const int32_t *a) {
    UNROLL for (int i = 0; i < mr; i++) {
        const __m256i x = _mm256_set1_epi32(a[i]);
        sum[2 * i] = dot(sum[2 * i], b0, x);
        sum[2 * i + 1] = dot(sum[2 * i + 1], b1, x);
    }
}

#endif
