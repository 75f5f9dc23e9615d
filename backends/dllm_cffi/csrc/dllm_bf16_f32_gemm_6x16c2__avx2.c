/* bfloat16 GEMM tile, AVX2 and FMA.
 *
 * Contract: see dllm_tile. A bfloat16 is the upper half of a float32: weights are widened by a shift or a
 * mask, activations once when they are packed. Every output is a sum of chains of DLLM_F32_CHUNK fused
 * multiply-adds.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 | ... | out 15: k0 k1 |  64 bytes
 *          a, one tile:   k0: | row 0 | ... | row mr-1 | k1: ... |  floats
 *
 * Registers: 6 x 2 sums, 2 weights, 1 broadcast: 15 of 16, and the mask in memory; totals there too.
 *
 * Measured on one Zen 4 core, 2048 x 4096: 90 % of the multiply-add peak at 128 rows, 88 % at 32. */
#include "avx2.h"

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const uint16_t *halves = rows;
    float *to = a;
    for (int64_t k = 0; k < 2 * steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = dllm_widen(halves[i * ld + k]);
}

/* The first and the second bfloat16 of every pair. In assembly because the compiler would load pairs once,
 * into registers that there are not. */
DLLM_INLINE __m256 first_of(const uint16_t *b) {
    __m256 first;
    __asm__("vmovdqa %1, %0\n\tvpslld $16, %0, %0" : "=x"(first) : "m"(*(const __m256i *)b));
    return first;
}

DLLM_INLINE __m256 second_of(const uint16_t *b) {
    static const uint32_t mask[8] __attribute__((aligned(32))) = {
        0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
    __m256 second;
    __asm__("vmovdqa %1, %0\n\tvpand %2, %0, %0"
            : "=x"(second)
            : "m"(*(const __m256i *)b), "m"(*(const __m256i *)mask));
    return second;
}

DLLM_INLINE void add_products(const int mr, __m256 *sum, __m256 b0, __m256 b1, const float *a) {
    UNROLL for (int i = 0; i < mr; i++) {
        const __m256 x = _mm256_broadcast_ss(a + i);
        sum[2 * i] = _mm256_fmadd_ps(x, b0, sum[2 * i]);
        sum[2 * i + 1] = _mm256_fmadd_ps(x, b1, sum[2 * i + 1]);
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const float *a = t->a;
    const uint16_t *b = t->b;
    const char *ahead = t->prefetch;
    __m256 total[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++) {
        total[i] = _mm256_setzero_ps();
    }
    for (int64_t left = t->k_steps; left > 0; left -= DLLM_F32_CHUNK / 2) {
        __m256 sum[MR * VECTORS];
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            sum[i] = _mm256_setzero_ps();
        }
        int64_t steps = left < DLLM_F32_CHUNK / 2 ? left : DLLM_F32_CHUNK / 2;
        for (int64_t k = steps; k > 0; k--, a += 2 * mr, b += 2 * NR) {
            ahead = prefetch_next(ahead, t->prefetch_step);
            add_products(mr, sum, first_of(b), first_of(b + NR), a);
            add_products(mr, sum, second_of(b), second_of(b + NR), a + mr);
        }
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            total[i] = _mm256_add_ps(total[i], sum[i]);
        }
    }
    for (int j = 0; j < VECTORS; j++) {
        const __m256i mask = column_mask(t->cols, j);
        for (int i = 0; i < mr; i++)
            store_outputs(t, i, j, mask, total[2 * i + j]);
    }
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_bf16_f32_gemm_6x16c2__avx2";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_bf16_f32_gemm_6x16c2__avx2 = {
    .mr = MR, .nr = NR, .kr = 2, .a_bytes = 4, .b_bits = 16, .pack_a = pack_a, .gemm = gemm};
