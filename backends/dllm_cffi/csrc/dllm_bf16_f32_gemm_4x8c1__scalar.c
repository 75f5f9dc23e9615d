/* bfloat16 GEMM tile, portable C.
 *
 * Contract: see dllm_tile. Every output is a sum of chains of DLLM_F32_CHUNK products in ascending order of
 * k, with one rounding per multiply and per add. A bfloat16 is the upper half of a float32. Layout: a [k][mr]
 * floats, widened when they are packed; b [k][8] bfloat16. Registers: 4 x 8 sums. */
#include "row.h"

enum { MR = 4, NR = 8 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const uint16_t *halves = rows;
    float *to = a;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = dllm_widen(halves[i * ld + k]);
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    float total[MR][NR] = {0};
    const float *a = t->a;
    const uint16_t *b = t->b;
    for (int64_t left = t->k_steps; left > 0; left -= DLLM_F32_CHUNK) {
        float sum[MR][NR] = {0};
        for (int64_t k = left < DLLM_F32_CHUNK ? left : DLLM_F32_CHUNK; k > 0; k--, a += mr, b += NR)
            for (int i = 0; i < mr; i++)
                for (int j = 0; j < NR; j++)
                    sum[i][j] += a[i] * dllm_widen(b[j]);
        for (int i = 0; i < mr; i++)
            for (int j = 0; j < NR; j++)
                total[i][j] += sum[i][j];
    }
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < t->cols; j++) {
            float y = total[i][j] + (t->bias ? t->bias[j] : 0.0f);
            t->c[i * t->ldc + j] = t->residual ? y + t->residual[i * t->ldc + j] : y;
        }
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_bf16_f32_gemm_4x8c1__scalar";
    DLLM_RUN_TILE(4)
}

const dllm_gemm dllm_bf16_f32_gemm_4x8c1__scalar = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 4, .b_bits = 16, .pack_a = pack_a, .gemm = gemm};
