/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, AVX2.
 *
 * Contract: see dllm_tile. Exact: both sides are widened to int16 and vpmaddwd adds two products in int32.
 * Each group's integer sum starts at -8 * (sum of the row's codes in the group), since weights are stored as
 * code + 8; it is then scaled and added, groups in ascending order.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k2 k1+k3 | ... | out 15 |  32 bytes, the first input of a byte
 * in its lower half a, one tile:   step 0: | row 0: k0 k1 | ... | row mr-1: k0 k1 | row 0: k2 k3 | ... |
 * int16
 *
 * Registers: 6 x 2 integer sums, 2 weights, 1 broadcast, 1 product: 16 of 16, and the mask in memory; float
 * sums live there too and are touched once per group. */
#include "avx2.h"

enum { ZERO = 8 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const int8_t *codes = rows;
    int16_t *to = a;
    for (int64_t k = 0; k < 2 * steps; k++)
        for (int i = 0; i < mr; i++) {
            *to++ = codes[i * ld + 2 * k];
            *to++ = codes[i * ld + 2 * k + 1];
        }
}

static void start(const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    for (int64_t first = 0, g = 0; first < k; first += group, g++) {
        int32_t sum = 0;
        for (int64_t i = first; i < first + group && i < k; i++)
            sum += codes[i];
        out[g] = -ZERO * sum;
    }
}

/* sum += b . x by pairs. In assembly because gcc 12, given the intrinsics, loads all activations first and
 * has no registers left for the sums. */
DLLM_INLINE __m256i dot(__m256i sum, __m256i b, __m256i x) {
    __m256i product;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(b), "x"(x));
    return sum;
}

/* The lower and the upper half of 16 bytes as int16. In assembly because the compiler would keep the bytes of
 * both in registers that it does not have. */
DLLM_INLINE __m256i lower(const __m128i *b) {
    static const int16_t mask[16]
        __attribute__((aligned(32))) = {15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15};
    __m256i half;
    __asm__("vpmovzxbw %1, %0\n\tvpand %2, %0, %0" : "=x"(half) : "m"(*b), "m"(*(const __m256i *)mask));
    return half;
}

DLLM_INLINE __m256i upper(const __m128i *b) {
    __m256i half;
    __asm__("vpmovzxbw %1, %0\n\tvpsrlw $4, %0, %0" : "=x"(half) : "m"(*b));
    return half;
}

DLLM_INLINE void add_products(const int mr, __m256i *sum, __m256i b0, __m256i b1, const int32_t *a) {
    UNROLL for (int i = 0; i < mr; i++) {
        const __m256i x = _mm256_set1_epi32(a[i]);
        sum[2 * i] = dot(sum[2 * i], b0, x);
        sum[2 * i + 1] = dot(sum[2 * i + 1], b1, x);
    }
}

DLLM_INLINE void store_sums(const int mr, const dllm_tile *t, int64_t group, const __m256i *sum) {
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < VECTORS; j++)
            _mm256_maskstore_epi32(t->acc + group * t->acc_group + i * t->ldc + j * LANES,
                                   column_mask(t->cols, j), sum[2 * i + j]);
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const int32_t *a = t->a; /* pairs of int16 */
    const __m128i *b = t->b;
    const int32_t *a_start = t->a_start;
    const float *b_scale = t->b_scale;
    const char *ahead = t->prefetch;
    float total[MR * NR] __attribute__((aligned(32))) = {0};
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        __m256i sum[MR * VECTORS];
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            sum[i] = _mm256_set1_epi32(a_start[i / 2]);
        }
        int64_t steps = left < t->group_steps ? left : t->group_steps;
        for (int64_t k = steps; k > 0; k--, a += 2 * mr, b += 2) {
            ahead = prefetch_next(ahead, t->prefetch_step);
            add_products(mr, sum, lower(b), lower(b + 1), a);
            add_products(mr, sum, upper(b), upper(b + 1), a + mr);
        }
        UNROLL for (int i = 0; i < 2 * mr; i++) {
            const __m256 scale = _mm256_loadu_ps(b_scale + i % 2 * LANES);
            const __m256 y = _mm256_load_ps(total + i * LANES);
            _mm256_store_ps(total + i * LANES, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), scale, y));
        }
        if (t->acc)
            store_sums(mr, t, group, sum);
        a_start += mr;
        b_scale += NR;
    }
    if (!t->c)
        return;
    for (int j = 0; j < VECTORS; j++) {
        const __m256i mask = column_mask(t->cols, j);
        for (int i = 0; i < mr; i++) {
            const __m256 y = _mm256_load_ps(total + (2 * i + j) * LANES);
            store_outputs(t, i, j, mask, _mm256_mul_ps(y, _mm256_set1_ps(t->a_scale[i])));
        }
    }
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb4w_gemm_6x16c4__avx2";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_6x16c4__avx2 = {.mr = MR,
                                                       .nr = NR,
                                                       .kr = 4,
                                                       .a_bytes = 2,
                                                       .b_bits = 4,
                                                       .zero_point = ZERO,
                                                       .pack_a = pack_a,
                                                       .start = start,
                                                       .gemm = gemm};
