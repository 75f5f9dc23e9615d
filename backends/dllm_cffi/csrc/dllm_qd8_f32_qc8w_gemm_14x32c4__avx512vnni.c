/* int8 x int8 GEMM tile with one weight scale per output, AVX512-VNNI.
 *
 * Contract: see dllm_tile; one group. vpdpbusd multiplies unsigned by signed bytes, so weights are stored as
 * code + 128 and every sum starts at -128 * (sum of the row's codes).
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 k2 k3 | out 1: k0..k3 | ... | out 31: k0..k3 |  128 bytes
 *                         step 1: | out 0: k4 k5 k6 k7 | ...
 *          a, one tile:   step 0: | row 0: k0 k1 k2 k3 | row 1: k0..k3 | ... | row mr-1: k0..k3 |
 *
 * Registers: 14 x 2 sums, 2 weights, 1 broadcast of activations: 31 of 32. Per step 28 vpdpbusd (28 cycles)
 * against 2 + 14 loads.
 *
 * Measured: docs/performance.md. */
#include "avx512.h"

enum { MR = 14 };

static void start(const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    start_at(128, codes, k, group, out);
}

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave_words(rows, ld / 4, mr, steps, a);
}

static void finish(const dllm_tile *t, __m512i *sum) {
    __m512 total[MR * VECTORS];
    for (int i = 0; i < VECTORS * t->mr; i++)
        total[i] =
            _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i]), _mm512_loadu_ps(t->b_scale + i % VECTORS * LANES));
    if (t->acc)
        store_sums(t, 0, sum);
    if (t->c)
        store_outputs(t, total);
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const int8_t *a = t->a;
    const uint8_t *b = t->b;
    const char *ahead = t->prefetch;
    const int ahead_step = t->prefetch_step;
    __m512i sum[MR * VECTORS];
    UNROLL for (int i = 0; i < mr; i++) {
        sum[2 * i] = sum[2 * i + 1] = _mm512_set1_epi32(t->a_start[i]);
    }
    for (int64_t k = t->k_steps; k > 0; k--, a += 4 * mr, b += 4 * NR) {
        const __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + 64);
        ahead = prefetch_next(ahead, ahead_step);
        prefetch_rows(a);
        UNROLL for (int i = 0; i < mr; i++) {
            const __m512i x = _mm512_set1_epi32(((const int32_t *)a)[i]);
            sum[2 * i] = dot(sum[2 * i], b0, x);
            sum[2 * i + 1] = dot(sum[2 * i + 1], b1, x);
        }
    }
    __m512i sums[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++) {
        _mm512_store_si512(sums + i, sum[i]);
    }
    finish(t, sums);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qc8w_gemm_14x32c4__avx512vnni";
    DLLM_RUN_TILE(14)
}

const dllm_gemm dllm_qd8_f32_qc8w_gemm_14x32c4__avx512vnni = {.mr = MR,
                                                              .nr = NR,
                                                              .kr = 4,
                                                              .a_bytes = 1,
                                                              .b_bits = 8,
                                                              .zero_point = 128,
                                                              .pack_a = pack_a,
                                                              .start = start,
                                                              .gemm = gemm};
