/* bfloat16 GEMM tile, NEON with the matrix instructions (i8mm and bf16 come together).
 *
 * Contract: see dllm_tile. bfmmla multiplies 2 rows of 4 bfloat16 by 2 outputs of 4 and adds the four
 * products to float32, rounded to odd on the way, denormals taken as zero. Every output is a sum of chains of
 * DLLM_F32_CHUNK products: one long chain would lose digits.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 k2 k3 | out 1: k0..k3 | ... | out 7: k0..k3 |  64 bytes
 *          a, one tile:   step 0: | row 0: k0 k1 k2 k3 | ... | row mr-1: k0..k3 |
 *
 * Registers: 4 x 4 blocks of 2 rows x 2 outputs, 4 weights, 1 activation: 21 of 32. Per step 16 bfmmla
 * against 4 + 4 loads. An odd last row is paired with zeros. Not timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 8, NR = 8, VECTORS = 2, BLOCKS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, 2 * ld, mr, steps, 8, a);
}

DLLM_INLINE bfloat16x8_t two_rows(const int8_t *a, int alone) {
    return vreinterpretq_bf16_s8(alone ? vcombine_s8(vld1_s8(a), vdup_n_s8(0)) : vld1q_s8(a));
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, float32x4_t *sum) {
    const int pairs = (mr + 1) / 2;
    float32x4_t block[MR / 2 * BLOCKS];
    UNROLL for (int i = 0; i < pairs * BLOCKS; i++) {
        block[i] = vdupq_n_f32(0);
    }
    for (; steps > 0; steps--, s->a += 8 * mr, s->b += 8 * NR) {
        const int8x16x4_t w = vld1q_s8_x4(s->b);
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int i = 0; i < pairs; i++) {
            const bfloat16x8_t x = two_rows(s->a + 16 * i, 2 * i + 1 == mr);
            UNROLL for (int j = 0; j < BLOCKS; j++) {
                block[i * BLOCKS + j] =
                    vbfmmlaq_f32(block[i * BLOCKS + j], x, vreinterpretq_bf16_s8(w.val[j]));
            }
        }
    }
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        const float32x4_t *two = block + i / VECTORS / 2 * BLOCKS + i % VECTORS * 2;
        sum[i] = vreinterpretq_f32_s32(
            row_of(vreinterpretq_s32_f32(two[0]), vreinterpretq_s32_f32(two[1]), i / VECTORS % 2));
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    float_tile(mr, VECTORS, 4, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_bf16_f32_gemm_8x8c4__neoni8mm";
    DLLM_RUN_TILE(8)
}

const dllm_gemm dllm_bf16_f32_gemm_8x8c4__neoni8mm = {
    .mr = MR, .nr = NR, .kr = 4, .a_bytes = 2, .b_bits = 16, .pack_a = pack_a, .gemm = gemm};
