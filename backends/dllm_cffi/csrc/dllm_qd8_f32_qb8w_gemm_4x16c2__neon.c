/* int8 x int8 GEMM tile with one weight scale per group of inputs (one group: per channel), NEON.
 *
 * Contract: see dllm_tile. Exact: codes lie in -127..127, so that the products of two steps fit an int16
 * (2 * 127^2 < 2^15); sadalp then adds neighbours, the two inputs of a step, to int32.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 | out 1: k0 k1 | ... | out 15: k0 k1 |  32 bytes
 *          a, one tile:   step 0: | row 0: k0 k1 | ... | row mr-1: k0 k1 |
 *
 * Registers: 4 x 4 sums, 4 weights of two steps, 2 activations, 1 of products: 23 of 32. Per two steps and
 * vector of sums smull, smlal and sadalp: 16 products. Not timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 4, NR = 16, VECTORS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, ld, mr, steps, 2, a);
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, int32x4_t *sum) {
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        sum[i] = vdupq_n_s32(0);
    }
    for (; steps >= 2; steps -= 2, s->a += 4 * mr, s->b += 4 * NR) {
        const int8x16x2_t w0 = vld1q_s8_x2(s->b), w1 = vld1q_s8_x2(s->b + 2 * NR);
        s->ahead = prefetch_next(s->ahead, 2 * s->ahead_step);
        UNROLL for (int i = 0; i < mr; i++) {
            add_row(sum + i * VECTORS, w0, w1, spread(s->a, i), spread(s->a, mr + i));
        }
    }
    if (steps) {
        const int8x16x2_t w = vld1q_s8_x2(s->b);
        UNROLL for (int i = 0; i < mr; i++) {
            add_row(sum + i * VECTORS, w, w, spread(s->a, i), vdupq_n_s8(0));
        }
        s->a += 2 * mr;
        s->b += 2 * NR;
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    int8_tile(mr, VECTORS, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb8w_gemm_4x16c2__neon";
    DLLM_RUN_TILE(4)
}

const dllm_gemm dllm_qd8_f32_qb8w_gemm_4x16c2__neon = {
    .mr = MR, .nr = NR, .kr = 2, .a_bytes = 1, .b_bits = 8, .pack_a = pack_a, .gemm = gemm};
