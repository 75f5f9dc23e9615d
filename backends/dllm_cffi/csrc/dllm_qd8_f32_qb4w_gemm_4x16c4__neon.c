/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, NEON.
 *
 * Contract: see dllm_tile. Weights are stored as code + 8, so each group's sum starts at -8 * (sum of the
 * row's codes in the group). The products of four inputs fit an int16 by twos (2 * 127 * 15 < 2^15).
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k2 k1+k3 | ... | out 15 |  32 bytes, the first input of a byte
 *                         in its lower half
 *          a, one tile:   step 0: | row 0: k0 k1 | ... | row mr-1: k0 k1 | row 0: k2 k3 | ... |
 *
 * Registers: 4 x 4 sums, 4 weights, 2 activations, 1 of products, the mask: 24 of 32. Not timed: no such CPU
 * was at hand. */
#include "neon.h"

enum { MR = 4, NR = 16, VECTORS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, ld, mr, 2 * steps, 2, a);
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, int32x4_t *sum) {
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        sum[i] = vdupq_n_s32(s->start[i / VECTORS]);
    }
    for (; steps > 0; steps--, s->a += 4 * mr, s->b += 2 * NR) {
        const int8x16x2_t w = vld1q_s8_x2(s->b);
        const int8x16x2_t w0 = {{lower(w.val[0]), lower(w.val[1])}};
        const int8x16x2_t w1 = {{upper(w.val[0]), upper(w.val[1])}};
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int i = 0; i < mr; i++) {
            add_row(sum + i * VECTORS, w0, w1, spread(s->a, i), spread(s->a, mr + i));
        }
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    int8_tile(mr, VECTORS, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb4w_gemm_4x16c4__neon";
    DLLM_RUN_TILE(4)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_4x16c4__neon = {.mr = MR,
                                                       .nr = NR,
                                                       .kr = 4,
                                                       .a_bytes = 1,
                                                       .b_bits = 4,
                                                       .zero_point = 8,
                                                       .pack_a = pack_a,
                                                       .start = start_at_8,
                                                       .gemm = gemm};
