/* bfloat16 GEMM tile, AVX-512 without its bfloat16 instructions.
 *
 * Contract: see dllm_tile. A bfloat16 is the upper half of a float32: weights are widened by a shift or a
 * mask, activations once when they are packed. Every output is a sum of chains of DLLM_F32_CHUNK fused
 * multiply-adds.
 *
 * Layout:  b, one panel:  as dllm_bf16_f32_gemm_14x32c2__avx512vnni
 *          a, one tile:   k0: | row 0 | ... | row mr-1 | k1: ... |  floats
 *
 * Registers: 14 x 2 sums, 2 weights, 1 broadcast: 31 of 32; mask and totals in memory. */
#include "avx512.h"

enum { MR = 14 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const uint16_t *halves = rows;
    float *to = a;
    for (int64_t k = 0; k < 2 * steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = dllm_widen(halves[i * ld + k]);
}

/* The first and the second bfloat16 of every pair. In assembly because the compiler would load pairs once,
 * into registers that there are not. */
DLLM_INLINE __m512 first_of(const uint16_t *b) {
    __m512 first;
    __asm__("vpslld $16, %1, %0" : "=v"(first) : "m"(*(const __m512i *)b));
    return first;
}

DLLM_INLINE __m512 second_of(const uint16_t *b) {
    static const uint32_t mask = 0xffff0000;
    __m512 second;
    __asm__("vmovdqa64 %1, %0\n\tvpandd %2%{1to16%}, %0, %0"
            : "=v"(second)
            : "m"(*(const __m512i *)b), "m"(mask));
    return second;
}

DLLM_INLINE void add_products(const int mr, __m512 *sum, __m512 b0, __m512 b1, const float *a) {
    UNROLL for (int i = 0; i < mr; i++) {
        const __m512 x = _mm512_set1_ps(a[i]);
        sum[2 * i] = _mm512_fmadd_ps(x, b0, sum[2 * i]);
        sum[2 * i + 1] = _mm512_fmadd_ps(x, b1, sum[2 * i + 1]);
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const float *a = t->a;
    const uint16_t *b = t->b;
    const char *ahead = t->prefetch;
    const int ahead_step = t->prefetch_step;
    __m512 total[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++) {
        total[i] = _mm512_setzero_ps();
    }
    for (int64_t left = t->k_steps; left > 0; left -= DLLM_F32_CHUNK / 2) {
        __m512 sum[MR * VECTORS];
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            sum[i] = _mm512_setzero_ps();
        }
        int64_t steps = left < DLLM_F32_CHUNK / 2 ? left : DLLM_F32_CHUNK / 2;
        for (int64_t k = steps; k > 0; k--, a += 2 * mr, b += 2 * NR) {
            ahead = prefetch_next(ahead, ahead_step);
            prefetch_rows(a);
            add_products(mr, sum, first_of(b), first_of(b + NR), a);
            add_products(mr, sum, second_of(b), second_of(b + NR), a + mr);
        }
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            total[i] = _mm512_add_ps(total[i], sum[i]);
        }
    }
    store_outputs(t, total);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_bf16_f32_gemm_14x32c2_fma__avx512vnni";
    DLLM_RUN_TILE(14)
}

const dllm_gemm dllm_bf16_f32_gemm_14x32c2_fma__avx512vnni = {
    .mr = MR, .nr = NR, .kr = 2, .a_bytes = 4, .b_bits = 16, .pack_a = pack_a, .gemm = gemm};
