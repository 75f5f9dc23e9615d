/* float32 GEMM tile, portable C.
 *
 * Contract: see dllm_tile. Sums run over k in ascending order, one rounding per multiply and per add.
 * Layout: a [k][mr], b [k][8] floats.
 * Registers: 4 x 8 sums; the compiler may keep them in vectors of whatever the baseline has. */
#include <string.h>

#include "row.h"

enum { MR = 4, NR = 8 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a)
{
    const float *x = rows;
    float *to = a;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = x[i * ld + k];
}

static void gemm(dllm_tile *t)
{
    float sum[MR][NR];
    memset(sum, 0, sizeof sum);
    const float *a = t->a, *b = t->b;
    for (int64_t k = 0; k < t->k_steps; k++, a += t->mr, b += NR)
        for (int i = 0; i < t->mr; i++)
            for (int j = 0; j < NR; j++)
                sum[i][j] += a[i] * b[j];
    for (int i = 0; i < t->mr; i++)
        for (int j = 0; j < t->cols; j++) {
            float y = sum[i][j] + (t->bias ? t->bias[j] : 0.0f);
            t->c[i * t->ldc + j] = t->residual ? y + t->residual[i * t->ldc + j] : y;
        }
    t->kernel = "dllm_f32_gemm_4x8c1__scalar";
}

const dllm_gemm dllm_f32_gemm_4x8c1__scalar = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bytes = 4, .pack_a = pack_a, .gemm = gemm};
