/* int8 x int4 GEMM tile with one weight scale per output and group of inputs, AVX-VNNI.
 *
 * Contract: see dllm_tile. Weights are stored as code + 8, so each group's sum starts at -8 * (sum of the
 * row's codes in the group); it is then scaled and added, groups in ascending order.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0+k4 k1+k5 k2+k6 k3+k7 | ... | out 15 |  64 bytes, the first
 * input of a byte in its lower half a, one tile:   step 0: | row 0: k0..k3 | ... | row mr-1: k0..k3 | row 0:
 * k4..k7 | ... |
 *
 * Registers: 6 x 2 integer sums, 2 weights, 1 broadcast, the mask: 16 of 16; float sums live in memory and
 * are touched once per group. Tested and timed in another encoding only, see avxvnni.h. */
#include "avx2.h"
#include "avxvnni.h"

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave_words(rows, ld, mr, 2 * steps, a);
}

static void start(const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    start_at(8, codes, k, group, out);
}

/* The lower and the upper halves of 32 bytes. In assembly because the compiler would keep the bytes of both
 * in registers that it does not have. */
DLLM_INLINE __m256i lower(const __m256i *b) {
    __m256i half;
    __asm__("vpand %1, %2, %0" : "=x"(half) : "m"(*b), "x"(_mm256_set1_epi8(15)));
    return half;
}

DLLM_INLINE __m256i upper(const __m256i *b) {
    __m256i half;
    __asm__("vmovdqa %1, %0\n\tvpsrld $4, %0, %0\n\tvpand %0, %2, %0"
            : "=&x"(half)
            : "m"(*b), "x"(_mm256_set1_epi8(15)));
    return half;
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    const int32_t *a = t->a; /* four codes each */
    const __m256i *b = t->b;
    const int32_t *a_start = t->a_start;
    const float *b_scale = t->b_scale;
    const char *ahead = t->prefetch;
    float total[MR * NR] __attribute__((aligned(32))) = {0};
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        __m256i sum[MR * VECTORS];
        UNROLL for (int i = 0; i < mr; i++) {
            sum[2 * i] = sum[2 * i + 1] = _mm256_set1_epi32(a_start[i]);
        }
        int64_t steps = left < t->group_steps ? left : t->group_steps;
        for (int64_t k = steps; k > 0; k--, a += 2 * mr, b += 2) {
            ahead = prefetch_next(ahead, t->prefetch_step);
            add_products(mr, sum, lower(b), lower(b + 1), a);
            add_products(mr, sum, upper(b), upper(b + 1), a + mr);
        }
        add_group(mr, t, group, sum, b_scale, total);
        a_start += mr;
        b_scale += NR;
    }
    if (t->c)
        store_totals(mr, t, total);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb4w_gemm_6x16c8__avxvnni";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb4w_gemm_6x16c8__avxvnni = {.mr = MR,
                                                          .nr = NR,
                                                          .kr = 8,
                                                          .a_bytes = 1,
                                                          .b_bits = 4,
                                                          .zero_point = 8,
                                                          .pack_a = pack_a,
                                                          .start = start,
                                                          .gemm = gemm};
