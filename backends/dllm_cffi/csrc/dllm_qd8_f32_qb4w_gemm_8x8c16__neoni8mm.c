/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, NEON i8mm.
 *
 * Contract: see dllm_tile. Weights are stored as code + 8, so each group's sum starts at -8 * (sum of the
 * row's codes in the group).
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k8 k1+k9 ... k7+k15 | ... | out 7 |  64 bytes, the first input
 * of a byte in its lower half a, one tile:   step 0: | row 0: k0 ... k7 | ... | row mr-1: k0 ... k7 | row 0:
 * k8 ... k15 | ... |
 *
 * Registers: 4 x 4 blocks of 2 rows x 2 outputs, 4 bytes and 4 weights, 1 activation, the mask: 26 of 32. Per
 * step 32 smmla and 8 instructions that unpack, against 4 + 8 loads. Not timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 8, NR = 8, VECTORS = 2, BLOCKS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, ld, mr, 2 * steps, 8, a);
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, int32x4_t *sum) {
    int32x4_t block[MR / 2 * BLOCKS];
    UNROLL for (int i = 0; i < (mr + 1) / 2 * BLOCKS; i++) {
        const int row = i / BLOCKS * 2;
        block[i] = vcombine_s32(vdup_n_s32(s->start[row]), vdup_n_s32(s->start[row + (row + 1 < mr)]));
    }
    for (; steps > 0; steps--, s->a += 16 * mr, s->b += 8 * NR) {
        const int8x16x4_t bytes = vld1q_s8_x4(s->b);
        int8x16_t w[BLOCKS];
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int j = 0; j < BLOCKS; j++) {
            w[j] = lower(bytes.val[j]);
        }
        multiply_rows(mr, block, w, s->a);
        UNROLL for (int j = 0; j < BLOCKS; j++) {
            w[j] = upper(bytes.val[j]);
        }
        multiply_rows(mr, block, w, s->a + 8 * mr);
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
    t->kernel = "dllm_qd8_f32_qb4w_gemm_8x8c16__neoni8mm";
    DLLM_RUN_TILE(8)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_8x8c16__neoni8mm = {.mr = MR,
                                                           .nr = NR,
                                                           .kr = 16,
                                                           .a_bytes = 1,
                                                           .b_bits = 4,
                                                           .zero_point = 8,
                                                           .pack_a = pack_a,
                                                           .start = start_at_8,
                                                           .gemm = gemm};
