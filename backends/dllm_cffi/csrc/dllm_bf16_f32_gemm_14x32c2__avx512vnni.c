/* bfloat16 GEMM tile, AVX512-BF16; on CPUs of this row without it the fallback runs on the same weights.
 *
 * Contract: see dllm_tile. vdpbf16ps adds the products of two pairs to a float32, each addition rounded half
 * to even, denormals taken and given as zero. Every output is a sum of chains of DLLM_F32_CHUNK products: one
 * long chain would lose digits.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 | out 1: k0 k1 | ... | out 31: k0 k1 |  128 bytes
 *          a, one tile:   step 0: | row 0: k0 k1 | ... | row mr-1: k0 k1 |
 *
 * Registers: 14 x 2 sums, 2 weights, 1 broadcast: 31 of 32; totals in memory.
 *
 * Measured: docs/performance.md. */
#include "avx512.h"

enum { MR = 14 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave_words(rows, ld / 2, mr, steps, a);
}

/* sum += b . x by pairs. In assembly, so that the file needs no flags that the row does not have, and because
 * gcc 12 copies the sums of the intrinsic between registers. */
DLLM_INLINE __m512 dot_pairs(__m512 sum, __m512i b, __m512i x) {
#if __has_include(<avx512bf16intrin.h>) /* so the assembler knows it too */
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(x));
#endif
    return sum;
}

static int supported(void) {
#if __has_include(<avx512bf16intrin.h>)
    return dllm_has_cpuid_7_1(DLLM_AVX512BF16_BIT);
#else
    return 0;
#endif
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const int32_t *a = t->a; /* pairs */
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
        for (int64_t k = steps; k > 0; k--, a += mr, b += 2 * NR) {
            const __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + NR);
            ahead = prefetch_next(ahead, ahead_step);
            prefetch_rows(a);
            UNROLL for (int i = 0; i < mr; i++) {
                const __m512i x = _mm512_set1_epi32(a[i]);
                sum[2 * i] = dot_pairs(sum[2 * i], b0, x);
                sum[2 * i + 1] = dot_pairs(sum[2 * i + 1], b1, x);
            }
        }
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            total[i] = _mm512_add_ps(total[i], sum[i]);
        }
    }
    store_outputs(t, total);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_bf16_f32_gemm_14x32c2__avx512vnni";
    DLLM_RUN_TILE(14)
}

const dllm_gemm dllm_bf16_f32_gemm_14x32c2__avx512vnni = {.mr = MR,
                                                          .nr = NR,
                                                          .kr = 2,
                                                          .a_bytes = 2,
                                                          .b_bits = 16,
                                                          .supported = supported,
                                                          .fallback =
                                                              &dllm_bf16_f32_gemm_14x32c2_fma__avx512vnni,
                                                          .pack_a = pack_a,
                                                          .gemm = gemm};
