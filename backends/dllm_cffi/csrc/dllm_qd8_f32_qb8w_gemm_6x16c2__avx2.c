/* int8 x int8 GEMM tile with one weight scale per group of inputs (one group: per channel), AVX2.
 *
 * Contract: see dllm_tile. Exact: both sides are widened to int16 and vpmaddwd adds two products in int32, so
 * nothing saturates as vpmaddubsw would. Groups are scaled and added in ascending order.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 | out 1: k0 k1 | ... | out 15: k0 k1 |  32 bytes, signed
 *          a, one tile:   step 0: | row 0: k0 k1 | ... | row mr-1: k0 k1 |  int16, widened once when packed
 *
 * Registers: 6 x 2 integer sums, 2 weights, 1 broadcast, 1 product: 16 of 16; float sums live in memory and
 * are touched once per group.
 *
 * Measured: docs/performance.md. */
#include "avx2.h"

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const int8_t *codes = rows;
    int16_t *to = a;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < mr; i++) {
            *to++ = codes[i * ld + 2 * k];
            *to++ = codes[i * ld + 2 * k + 1];
        }
}

/* sum += b . x by pairs. In assembly because gcc 12, given the intrinsics, loads all activations first and
 * has no registers left for the sums. */
DLLM_INLINE __m256i dot(__m256i sum, __m256i b, __m256i x) {
    __m256i product;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(b), "x"(x));
    return sum;
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const int32_t *a = t->a; /* pairs of int16 */
    const __m128i *b = t->b;
    const float *b_scale = t->b_scale;
    const char *ahead = t->prefetch;
    float total[MR * NR] __attribute__((aligned(32))) = {0};
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        __m256i sum[MR * VECTORS];
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            sum[i] = _mm256_setzero_si256();
        }
        int64_t steps = left < t->group_steps ? left : t->group_steps;
        for (int64_t k = steps; k > 0; k--, a += mr, b += 2) {
            const __m256i b0 = _mm256_cvtepi8_epi16(_mm_load_si128(b));
            const __m256i b1 = _mm256_cvtepi8_epi16(_mm_load_si128(b + 1));
            ahead = prefetch_next(ahead, t->prefetch_step);
            UNROLL for (int i = 0; i < mr; i++) {
                const __m256i x = _mm256_set1_epi32(a[i]);
                sum[2 * i] = dot(sum[2 * i], b0, x);
                sum[2 * i + 1] = dot(sum[2 * i + 1], b1, x);
            }
        }
        add_group(mr, t, group, sum, b_scale, total);
        b_scale += NR;
    }
    if (t->c)
        store_totals(mr, t, total);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb8w_gemm_6x16c2__avx2";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb8w_gemm_6x16c2__avx2 = {
    .mr = MR, .nr = NR, .kr = 2, .a_bytes = 2, .b_bits = 8, .pack_a = pack_a, .gemm = gemm};
