/* float32 GEMM tile, NEON.
 *
 * Contract: see dllm_tile. Every output is a sum of chains of DLLM_F32_CHUNK fused multiply-adds, in
 * ascending order of k: one long chain would lose digits. Layout: a [k][mr], b [k][16] floats. Registers: 6 x
 * 4 sums, 4 weights, 1 activation: 29 of 32; totals in memory. Per step 24 fmla against 4 + 6 loads. Not
 * timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 6, NR = 16, VECTORS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, 4 * ld, mr, steps, 4, a);
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, float32x4_t *sum) {
    const float *a = (const float *)s->a, *b = (const float *)s->b;
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        sum[i] = vdupq_n_f32(0);
    }
    for (; steps > 0; steps--, a += mr, b += NR) {
        const float32x4x4_t w = vld1q_f32_x4(b);
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int i = 0; i < mr * VECTORS; i++) {
            sum[i] = fma_by(sum[i], w.val[i % VECTORS], a[i / VECTORS]);
        }
    }
    s->a = (const int8_t *)a;
    s->b = (const int8_t *)b;
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    float_tile(mr, VECTORS, 1, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_f32_gemm_6x16c1__neon";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_f32_gemm_6x16c1__neon = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bits = 32, .pack_a = pack_a, .gemm = gemm};
