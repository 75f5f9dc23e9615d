/* int8 x int8 GEMM tile with one weight scale per group of inputs (one group: per channel), NEON dotprod.
 *
 * Contract: see dllm_tile. sdot adds four products of signed bytes to an int32: exact, no zero point.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 k2 k3 | out 1: k0..k3 | ... | out 15: k0..k3 |  64 bytes
 *          a, one tile:   step 0: | row 0: k0 k1 k2 k3 | ... | row mr-1: k0..k3 |
 *
 * Registers: 6 x 4 sums, 4 weights, 1 activation: 29 of 32. Per step 24 sdot against 4 + 6 loads. Not timed:
 * no such CPU was at hand. */
#include "neon.h"

enum { MR = 6, NR = 16, VECTORS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, ld, mr, steps, 4, a);
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, int32x4_t *sum) {
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        sum[i] = vdupq_n_s32(0);
    }
    for (; steps > 0; steps--, s->a += 4 * mr, s->b += 4 * NR) {
        const int8x16x4_t w = vld1q_s8_x4(s->b);
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int i = 0; i < mr; i++) {
            dot_row(sum + i * VECTORS, w.val, s->a + 4 * i);
        }
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    int8_tile(mr, VECTORS, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb8w_gemm_6x16c4__neondot";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb8w_gemm_6x16c4__neondot = {
    .mr = MR, .nr = NR, .kr = 4, .a_bytes = 1, .b_bits = 8, .pack_a = pack_a, .gemm = gemm};
