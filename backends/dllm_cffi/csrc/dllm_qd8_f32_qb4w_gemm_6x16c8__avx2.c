/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, AVX2.
 *
 * Contract: see dllm_tile. Exact: vpmaddubsw adds two products of a weight 0..15 and a code -127..127 in
 * int16, at most 3810, and eight such sums cannot saturate; then vpmaddwd widens them to int32. So four bits
 * are faster than eight here. Each group's integer sum starts at -8 * (sum of the row's codes in the group),
 * since weights are stored as code + 8; it is then scaled and added, groups in ascending order.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k4 k1+k5 k2+k6 k3+k7 | ... | out 15 |  64 bytes,
 *                                 the first input of a byte in its lower half
 *          a, one tile:   step 0: | row 0: k0 k1 k2 k3 | ... | row mr-1: k0..k3 | row 0: k4..k7 | ... |
 *
 * Registers: 6 x 2 sums of int16, 2 weights, 1 broadcast, 1 product: 16 of 16, and the mask in memory. Sums
 * of int32 live there too and are touched every 4 steps, float sums once per group.
 *
 * Measured on one Zen 4 core, 2048 x 4096: 65 % of the peak of vpmaddubsw with vpaddw at 128 rows, 1.6 times
 * as fast as int8. */
#include <string.h>

#include "avx2.h"

enum { ZERO = 8, NARROW_STEPS = 4 }; /* steps whose sums fit int16: 2 x 4 x 3810 < 32768 */

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const int8_t *codes = rows;
    int8_t *to = a;
    for (int64_t k = 0; k < 2 * steps; k++)
        for (int i = 0; i < mr; i++, to += 4)
            memcpy(to, codes + i * ld + 4 * k, 4);
}

static void start(const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    for (int64_t first = 0, g = 0; first < k; first += group, g++) {
        int32_t sum = 0;
        for (int64_t i = first; i < first + group && i < k; i++)
            sum += codes[i];
        out[g] = -ZERO * sum;
    }
}

/* sum += b (unsigned bytes) . x (signed bytes), by pairs, in int16. In assembly because gcc 12, given the
 * intrinsics, loads all activations first and has no registers left for the sums. */
DLLM_INLINE __m256i dot(__m256i sum, __m256i b, __m256i x) {
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(b), "x"(x));
    return sum;
}

/* The lower and the upper halves of 32 bytes. In assembly because the compiler would keep the bytes of both
 * in registers that it does not have. */
static const uint64_t halves[4] __attribute__((aligned(32))) = {0x0f0f0f0f0f0f0f0f, 0x0f0f0f0f0f0f0f0f,
                                                                0x0f0f0f0f0f0f0f0f, 0x0f0f0f0f0f0f0f0f};

DLLM_INLINE __m256i lower(const __m256i *b) {
    __m256i half;
    __asm__("vmovdqa %1, %0\n\tvpand %2, %0, %0" : "=x"(half) : "m"(*b), "m"(*(const __m256i *)halves));
    return half;
}

DLLM_INLINE __m256i upper(const __m256i *b) {
    __m256i half;
    __asm__("vmovdqa %1, %0\n\tvpsrlw $4, %0, %0\n\tvpand %2, %0, %0"
            : "=x"(half)
            : "m"(*b), "m"(*(const __m256i *)halves));
    return half;
}

DLLM_INLINE void add_products(const int mr, __m256i *sum, __m256i b0, __m256i b1, const int8_t *a) {
    UNROLL for (int i = 0; i < mr; i++) {
        const __m256i x = _mm256_set1_epi32(((const int32_t *)a)[i]);
        sum[2 * i] = dot(sum[2 * i], b0, x);
        sum[2 * i + 1] = dot(sum[2 * i + 1], b1, x);
    }
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const int8_t *a = t->a;
    const __m256i *b = t->b;
    const int32_t *a_start = t->a_start;
    const float *b_scale = t->b_scale;
    const char *ahead = t->prefetch;
    float total[MR * NR] __attribute__((aligned(32))) = {0};
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        __m256i wide[MR * VECTORS];
        for (int i = 0; i < 2 * mr; i++)
            wide[i] = _mm256_set1_epi32(a_start[i / 2]);
        for (int64_t steps = left < t->group_steps ? left : t->group_steps; steps > 0;
             steps -= NARROW_STEPS) {
            __m256i sum[MR * VECTORS];
            UNROLL for (int i = 0; i < 2 * mr; i++) {
                sum[i] = _mm256_setzero_si256();
            }
            for (int64_t k = steps < NARROW_STEPS ? steps : NARROW_STEPS; k > 0; k--, a += 8 * mr, b += 2) {
                ahead = prefetch_next(ahead, t->prefetch_step);
                add_products(mr, sum, lower(b), lower(b + 1), a);
                add_products(mr, sum, upper(b), upper(b + 1), a + 4 * mr);
            }
            UNROLL for (int i = 0; i < 2 * mr; i++) {
                wide[i] = _mm256_add_epi32(wide[i], _mm256_madd_epi16(sum[i], _mm256_set1_epi16(1)));
            }
        }
        add_group(mr, t, group, wide, b_scale, total);
        a_start += mr;
        b_scale += NR;
    }
    if (t->c)
        store_totals(mr, t, total);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb4w_gemm_6x16c8__avx2";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_6x16c8__avx2 = {.mr = MR,
                                                       .nr = NR,
                                                       .kr = 8,
                                                       .a_bytes = 1,
                                                       .b_bits = 4,
                                                       .zero_point = ZERO,
                                                       .pack_a = pack_a,
                                                       .start = start,
                                                       .gemm = gemm};
