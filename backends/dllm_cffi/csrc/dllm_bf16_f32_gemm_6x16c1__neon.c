/* bfloat16 GEMM tile, NEON.
 *
 * Contract: see dllm_tile. A bfloat16 is the upper half of a float32: weights are widened by a shift,
 * activations once when they are packed. Every output is a sum of chains of DLLM_F32_CHUNK fused
 * multiply-adds.
 *
 * Layout: a [k][mr] floats; b [k][16] bfloat16. Registers: 6 x 4 sums, 4 weights, 1 activation: 29 of 32. Not
 * timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 6, NR = 16, VECTORS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const uint16_t *halves = rows;
    float *to = a;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = dllm_widen(halves[i * ld + k]);
}

/* Four bfloat16 as floats. In assembly, else the compiler keeps what it loaded beside what it made of it. */
DLLM_INLINE float32x4_t load_widened(const uint16_t *b) {
    float32x4_t w;
    __asm__("ldr %d0, %1\n\tshll %0.4s, %0.4h, #16" : "=w"(w) : "m"(*(const uint16x4_t *)b));
    return w;
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, float32x4_t *sum) {
    const float *a = (const float *)s->a;
    const uint16_t *b = (const uint16_t *)s->b;
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        sum[i] = vdupq_n_f32(0);
    }
    for (; steps > 0; steps--, a += mr, b += NR) {
        const float32x4_t w[VECTORS] = {load_widened(b), load_widened(b + 4), load_widened(b + 8),
                                        load_widened(b + 12)};
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int i = 0; i < mr * VECTORS; i++) {
            sum[i] = fma_by(sum[i], w[i % VECTORS], a[i / VECTORS]);
        }
    }
    s->a = (const int8_t *)a;
    s->b = (const int8_t *)b;
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    float_tile(mr, VECTORS, 1, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_bf16_f32_gemm_6x16c1__neon";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_bf16_f32_gemm_6x16c1__neon = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bits = 16, .pack_a = pack_a, .gemm = gemm};
