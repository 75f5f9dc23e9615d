/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, NEON dotprod.
 *
 * Contract: see dllm_tile. Weights are stored as code + 8, so each group's sum starts at -8 * (sum of the
 * row's codes in the group).
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k4 k1+k5 k2+k6 k3+k7 | ... | out 15 |  64 bytes, the first
 * input of a byte in its lower half a, one tile:   step 0: | row 0: k0..k3 | ... | row mr-1: k0..k3 | row 0:
 * k4..k7 | ... |
 *
 * Registers: 6 x 4 sums, 4 weights, 1 activation, the mask: 30 of 32. Per step 48 sdot and 8 instructions
 * that unpack, against 8 + 12 loads. Not timed: no such CPU was at hand. */
#include "neon.h"

enum { MR = 6, NR = 16, VECTORS = 4 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave(rows, ld, mr, 2 * steps, 4, a);
}

/* The lower or the upper halves of 16 bytes, loaded once for each: there are no registers to keep them in. In
 * assembly, else the compiler would load once. */
DLLM_INLINE int8x16_t load_lower(const int8_t *b) {
    int8x16_t w;
    __asm__("ldr %q0, %1\n\tand %0.16b, %0.16b, %2.16b"
            : "=&w"(w)
            : "m"(*(const int8x16_t *)b), "w"(vdupq_n_s8(15)));
    return w;
}

DLLM_INLINE int8x16_t load_upper(const int8_t *b) {
    int8x16_t w;
    __asm__("ldr %q0, %1\n\tushr %0.16b, %0.16b, #4" : "=w"(w) : "m"(*(const int8x16_t *)b));
    return w;
}

DLLM_INLINE void sum_steps(const int mr, streams *s, int64_t steps, int32x4_t *sum) {
    UNROLL for (int i = 0; i < mr * VECTORS; i++) {
        sum[i] = vdupq_n_s32(s->start[i / VECTORS]);
    }
    for (; steps > 0; steps--, s->a += 8 * mr) {
        int8x16_t w[VECTORS];
        s->ahead = prefetch_next(s->ahead, s->ahead_step);
        UNROLL for (int j = 0; j < VECTORS; j++) {
            w[j] = load_lower(s->b + 16 * j);
        }
        UNROLL for (int i = 0; i < mr; i++) {
            dot_row(sum + i * VECTORS, w, s->a + 4 * i);
        }
        UNROLL for (int j = 0; j < VECTORS; j++) {
            w[j] = load_upper(s->b + 16 * j);
        }
        UNROLL for (int i = 0; i < mr; i++) {
            dot_row(sum + i * VECTORS, w, s->a + 4 * (mr + i));
        }
        s->b += 4 * NR;
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    int8_tile(mr, VECTORS, t, sum_steps);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb4w_gemm_6x16c8__neondot";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_6x16c8__neondot = {.mr = MR,
                                                          .nr = NR,
                                                          .kr = 8,
                                                          .a_bytes = 1,
                                                          .b_bits = 4,
                                                          .zero_point = 8,
                                                          .pack_a = pack_a,
                                                          .start = start_at_8,
                                                          .gemm = gemm};
