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

/* sum += w x. In assembly because gcc, given the intrinsic, loads all activations first and has no registers
 * left for the sums. */
DLLM_INLINE float32x4_t fma_by(float32x4_t sum, float32x4_t w, float x) {
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(w), "w"(x));
    return sum;
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const float *a = t->a, *b = t->b;
    const char *ahead = t->prefetch;
    float total[MR * NR] = {0};
    for (int64_t left = t->k_steps; left > 0; left -= DLLM_F32_CHUNK) {
        float32x4_t sum[MR * VECTORS];
        UNROLL for (int i = 0; i < mr * VECTORS; i++) {
            sum[i] = vdupq_n_f32(0);
        }
        for (int64_t k = left < DLLM_F32_CHUNK ? left : DLLM_F32_CHUNK; k > 0; k--, a += mr, b += NR) {
            const float32x4x4_t w = vld1q_f32_x4(b);
            ahead = prefetch_next(ahead, t->prefetch_step);
            UNROLL for (int i = 0; i < mr * VECTORS; i++) {
                sum[i] = fma_by(sum[i], w.val[i % VECTORS], a[i / VECTORS]);
            }
        }
        UNROLL for (int i = 0; i < mr * VECTORS; i++) {
            vst1q_f32(total + i * LANES, vaddq_f32(vld1q_f32(total + i * LANES), sum[i]));
        }
    }
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < VECTORS; j++)
            store_outputs(t, i, j, vld1q_f32(total + (i * VECTORS + j) * LANES));
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_f32_gemm_6x16c1__neon";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_f32_gemm_6x16c1__neon = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bits = 32, .pack_a = pack_a, .gemm = gemm};
