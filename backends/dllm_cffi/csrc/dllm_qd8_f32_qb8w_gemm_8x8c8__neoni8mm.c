/* int8 x int8 GEMM tile with one weight scale per group of inputs (one group: per channel), NEON i8mm.
 *
 * Contract: see dllm_tile. smmla multiplies 2 rows of 8 signed bytes by 2 outputs of 8 and adds the four
 * products to int32: exact, no zero point. Twice the products of sdot for the same bytes of activations.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 ... k7 | out 1: k0 ... k7 | ... | out 7: k0 ... k7 |  64 bytes
 *          a, one tile:   step 0: | row 0: k0 ... k7 | ... | row mr-1: k0 ... k7 |
 *
 * Registers: 4 x 4 blocks of 2 rows x 2 outputs, 4 weights, 1 activation: 21 of 32. Per step 16 smmla against
 * 4 + 4 loads. An odd last row is paired with zeros. Not timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 8, NR = 8, VECTORS = 2, BLOCKS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, ld, mr, steps, 8, a);
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, int32x4_t *sum) {
    const int pairs = (mr + 1) / 2;
    int32x4_t block[MR / 2 * BLOCKS];
    UNROLL for (int i = 0; i < pairs * BLOCKS; i++) {
        block[i] = vdupq_n_s32(0);
    }
    for (; steps > 0; steps--, s->a += 8 * mr, s->b += 8 * NR) {
        const int8x16x4_t w = vld1q_s8_x4(s->b);
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        multiply_rows(mr, block, w.val, s->a);
    }
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        const int32x4_t *two = block + i / VECTORS / 2 * BLOCKS + i % VECTORS * 2;
        sum[i] = row_of(two[0], two[1], i / VECTORS % 2);
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    int8_tile(mr, VECTORS, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb8w_gemm_8x8c8__neoni8mm";
    DLLM_RUN_TILE(8)
}

const dllm_gemm dllm_qd8_f32_qb8w_gemm_8x8c8__neoni8mm = {
    .mr = MR, .nr = NR, .kr = 8, .a_bytes = 1, .b_bits = 8, .pack_a = pack_a, .gemm = gemm};
