/* float32 GEMM tile, AVX-512.
 *
 * Contract: see dllm_tile. Every output is one chain of fused multiply-adds over k in ascending order.
 * Layout: a [k][mr], b [k][32] floats.
 * Registers: 14 x 2 sums, 2 weights, 1 broadcast: 31 of 32. */
#include "avx512.h"

enum { MR = 14 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a)
{
    interleave_words(rows, ld, mr, steps, a);
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t)
{
    const float *a = t->a, *b = t->b;
    const char *ahead = t->prefetch;
    const int ahead_step = t->prefetch_step;
    __m512 sum[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++)
    {
        sum[i] = _mm512_setzero_ps();
    }
    for (int64_t k = t->k_steps; k > 0; k--, a += mr, b += NR) {
        const __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + LANES);
        ahead = prefetch_next(ahead, ahead_step);
        UNROLL for (int i = 0; i < mr; i++)
        {
            const __m512 x = _mm512_set1_ps(a[i]);
            sum[2 * i] = _mm512_fmadd_ps(x, b0, sum[2 * i]);
            sum[2 * i + 1] = _mm512_fmadd_ps(x, b1, sum[2 * i + 1]);
        }
    }
    __m512 totals[MR * VECTORS];
    UNROLL for (int i = 0; i < 2 * mr; i++)
    {
        totals[i] = sum[i];
    }
    store_outputs(t, totals);
}

#define CASE(mr)                                                                                             \
    case mr:                                                                                                 \
        tile(mr, t);                                                                                         \
        break;

static void gemm(dllm_tile *t)
{
    t->kernel = "dllm_f32_gemm_14x32c1__avx512vnni";
    switch (t->mr) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
            CASE(14)
    }
}

const dllm_gemm dllm_f32_gemm_14x32c1__avx512vnni = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bytes = 4, .pack_a = pack_a, .gemm = gemm};
