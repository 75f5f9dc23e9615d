/* float32 GEMM tile, AVX2 and FMA.
 *
 * Contract: see dllm_tile. Every output is one chain of fused multiply-adds over k in ascending order.
 * Layout: a [k][mr], b [k][16] floats.
 * Registers: 6 x 2 sums, 2 weights, 1 broadcast: 15 of 16. */
#include "avx2.h"

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a)
{
    const float *x = rows;
    float *to = a;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = x[i * ld + k];
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t)
{
    const float *a = t->a, *b = t->b;
    const char *ahead = t->prefetch;
    __m256 sum[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++)
    {
        sum[i] = _mm256_setzero_ps();
    }
    for (int64_t k = t->k_steps; k > 0; k--, a += mr, b += NR) {
        const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + LANES);
        ahead = prefetch_next(ahead, t->prefetch_step);
        UNROLL for (int i = 0; i < mr; i++)
        {
            const __m256 x = _mm256_broadcast_ss(a + i);
            sum[2 * i] = _mm256_fmadd_ps(x, b0, sum[2 * i]);
            sum[2 * i + 1] = _mm256_fmadd_ps(x, b1, sum[2 * i + 1]);
        }
    }
    UNROLL for (int j = 0; j < VECTORS; j++)
    {
        const __m256i mask = column_mask(t->cols, j);
        UNROLL for (int i = 0; i < mr; i++)
        {
            store_outputs(t, i, j, mask, sum[2 * i + j]);
        }
    }
}

#define CASE(mr)                                                                                             \
    case mr:                                                                                                 \
        tile(mr, t);                                                                                         \
        break;

static void gemm(dllm_tile *t)
{
    t->kernel = "dllm_f32_gemm_6x16c1__avx2";
    switch (t->mr) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
    }
}

const dllm_gemm dllm_f32_gemm_6x16c1__avx2 = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bytes = 4, .pack_a = pack_a, .gemm = gemm};
