/* int8 x int8 GEMM tile with one weight scale per group of inputs (one group: per channel), AVX-VNNI.
 *
 * Contract: see dllm_tile. vpdpbusd multiplies unsigned by signed bytes, so weights are stored as code + 128
 * and every group's sum starts at -128 * (sum of the row's codes in the group). Groups are scaled and added
 * in ascending order.
 *
 * Layout:  b, one panel:  step 0: | out 0: k0 k1 k2 k3 | out 1: k0..k3 | ... | out 15: k0..k3 |  64 bytes
 *          a, one tile:   step 0: | row 0: k0 k1 k2 k3 | row 1: k0..k3 | ... | row mr-1: k0..k3 |
 *
 * Registers: 6 x 2 integer sums, 2 weights, 1 broadcast: 15 of 16; float sums live in memory and are touched
 * once per group. Tested and timed in another encoding only, see avxvnni.h. */
#include "avx2.h"
#include "avxvnni.h"

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    interleave_words(rows, ld, mr, steps, a);
}

static void start(const int8_t *codes, int64_t k, int64_t group, int32_t *out) {
    start_at(128, codes, k, group, out);
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
        for (int64_t k = steps; k > 0; k--, a += mr, b += 2) {
            ahead = prefetch_next(ahead, t->prefetch_step);
            add_products(mr, sum, _mm256_load_si256(b), _mm256_load_si256(b + 1), a);
        }
        add_group(mr, t, group, sum, b_scale, total);
        a_start += mr;
        b_scale += NR;
    }
    if (t->c)
        store_totals(mr, t, total);
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb8w_gemm_6x16c4__avxvnni";
    DLLM_RUN_TILE(6)
}

const dllm_gemm dllm_qd8_f32_qb8w_gemm_6x16c4__avxvnni = {.mr = MR,
                                                          .nr = NR,
                                                          .kr = 4,
                                                          .a_bytes = 1,
                                                          .b_bits = 8,
                                                          .zero_point = 128,
                                                          .pack_a = pack_a,
                                                          .start = start,
                                                          .gemm = gemm};
