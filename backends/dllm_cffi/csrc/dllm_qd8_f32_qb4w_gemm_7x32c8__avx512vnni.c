/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, AVX512-VNNI.
 *
 * Contract: see dllm_tile. Each group's integer sum starts at -8 * (sum of the row's codes in the group),
 * since weights are stored as code + 8; it is then scaled and added to a float sum, groups in ascending
 * order.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k4 k1+k5 k2+k6 k3+k7 | out 1: ... | ... | out 31 |  128 bytes,
 *                                 the first input of a byte in its lower half
 *          a, one tile:   step 0: | row 0: k0 k1 k2 k3 | ... | row mr-1: k0..k3 | row 0: k4..k7 | ... |
 *          a_start [groups][mr], b_scale [groups][32]
 *
 * Registers: 7 x 2 integer and 7 x 2 float sums, 2 weights, 1 broadcast, 1 mask: 32 of 32. So the stored
 * bytes get none: both halves are unpacked from memory, in assembly because the compiler would load them
 * once. A step costs 28 vpdpbusd, 4 vpandd and 2 vpsrld.
 *
 * Measured: docs/performance.md. */
#include "avx512.h"

enum { MR = 7 };

static void start(const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    start_at(8, codes, k, group, out);
}

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave_words(rows, ld / 4, mr, 2 * steps, a);
}

/* The lower and the upper half of every byte. */
DLLM_INLINE __m512i lower(const uint8_t *b, __m512i mask) {
    __m512i half;
    __asm__("vpandd %1, %2, %0" : "=v"(half) : "m"(*(const __m512i *)b), "v"(mask));
    return half;
}

DLLM_INLINE __m512i upper(const uint8_t *b, __m512i mask) {
    __m512i half;
    __asm__("vpsrld $4, %1, %0\n\tvpandd %0, %2, %0" : "=&v"(half) : "m"(*(const __m512i *)b), "v"(mask));
    return half;
}

DLLM_INLINE void add_products(const int mr, __m512i *sum, __m512i b0, __m512i b1, const int8_t *a) {
    UNROLL for (int i = 0; i < mr; i++) {
        const __m512i x = _mm512_set1_epi32(((const int32_t *)a)[i]);
        sum[2 * i] = dot(sum[2 * i], b0, x);
        sum[2 * i + 1] = dot(sum[2 * i + 1], b1, x);
    }
}

DLLM_INLINE void tile_with(const int mr, const int check, const dllm_tile *t) {
    const int8_t *a = t->a;
    const uint8_t *b = t->b;
    const int32_t *a_start = t->a_start;
    const float *b_scale = t->b_scale;
    const char *ahead = t->prefetch;
    const int ahead_step = t->prefetch_step;
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i sum[MR * VECTORS];
    __m512 total[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++) {
        total[i] = _mm512_setzero_ps();
    }
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        UNROLL for (int i = 0; i < mr; i++) {
            sum[2 * i] = sum[2 * i + 1] = _mm512_set1_epi32(a_start[i]);
        }
        int64_t steps = left < t->group_steps ? left : t->group_steps;
        for (int64_t k = steps; k > 0; k--, a += 8 * mr, b += 4 * NR) {
            ahead = prefetch_next(ahead, ahead_step);
            prefetch_rows(a);
            add_products(mr, sum, lower(b, mask), lower(b + 64, mask), a);
            add_products(mr, sum, upper(b, mask), upper(b + 64, mask), a + 4 * mr);
        }
        const __m512 s0 = _mm512_loadu_ps(b_scale), s1 = _mm512_loadu_ps(b_scale + LANES);
        UNROLL for (int i = 0; i < mr; i++) {
            total[2 * i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[2 * i]), s0, total[2 * i]);
            total[2 * i + 1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[2 * i + 1]), s1, total[2 * i + 1]);
        }
        if (check)
            store_sums(t, group, sum);
        a_start += mr;
        b_scale += NR;
    }
    __m512 totals[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++) {
        totals[i] = total[i];
    }
    if (t->c)
        store_outputs(t, totals);
}

/* Two instances, so that the integer sums stay in registers when nobody asks for them. */
DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    if (t->acc)
        tile_with(mr, 1, t);
    else
        tile_with(mr, 0, t);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb4w_gemm_7x32c8__avx512vnni";
    DLLM_RUN_TILE(7)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_7x32c8__avx512vnni = {.mr = MR,
                                                             .nr = NR,
                                                             .kr = 8,
                                                             .a_bytes = 1,
                                                             .b_bits = 4,
                                                             .zero_point = 8,
                                                             .pack_a = pack_a,
                                                             .start = start,
                                                             .gemm = gemm};
