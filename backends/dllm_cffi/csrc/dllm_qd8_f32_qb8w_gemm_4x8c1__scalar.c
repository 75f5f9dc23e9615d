/* int8 x int8 GEMM tile with one weight scale per group of inputs (one group: per channel), portable C.
 *
 * Contract: see dllm_tile. Integer sums are exact; groups are added in ascending order.
 * Layout: a [k][mr], b [k][8] signed bytes.
 * Registers: 4 x 8 integer sums, 4 x 8 float sums in memory. */
#include <string.h>

#include "row.h"

enum { MR = 4, NR = 8 };

static void pack_a(const void *rows, int64_t ld, int mr, int64_t steps, void *a) {
    const int8_t *codes = rows;
    int8_t *to = a;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < mr; i++)
            *to++ = codes[i * ld + k];
}

static void store_sums(const dllm_tile *t, int64_t group, int32_t sum[MR][NR]) {
    for (int i = 0; i < t->mr; i++)
        memcpy(t->acc + group * t->acc_group + i * t->ldc, sum[i], (size_t)t->cols * sizeof(int32_t));
}

DLLM_INLINE void tile(const int mr, const dllm_tile *t) {
    float total[MR][NR] = {0};
    const int8_t *a = t->a, *b = t->b;
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        int32_t sum[MR][NR] = {0};
        for (int64_t k = left < t->group_steps ? left : t->group_steps; k > 0; k--, a += mr, b += NR)
            for (int i = 0; i < mr; i++)
                for (int j = 0; j < NR; j++)
                    sum[i][j] += a[i] * b[j];
        for (int i = 0; i < mr; i++)
            for (int j = 0; j < NR; j++)
                total[i][j] += (float)sum[i][j] * t->b_scale[group * NR + j];
        if (t->acc)
            store_sums(t, group, sum);
    }
    for (int i = 0; t->c && i < mr; i++)
        for (int j = 0; j < t->cols; j++) {
            float y = total[i][j] * t->a_scale[i] + (t->bias ? t->bias[j] : 0.0f);
            t->c[i * t->ldc + j] = t->residual ? y + t->residual[i * t->ldc + j] : y;
        }
}

static void gemm(dllm_tile *t) {
    t->kernel = "dllm_qd8_f32_qb8w_gemm_4x8c1__scalar";
    DLLM_RUN_TILE(4)
}

const dllm_gemm dllm_qd8_f32_qb8w_gemm_4x8c1__scalar = {
    .mr = MR, .nr = NR, .kr = 1, .a_bytes = 1, .b_bits = 8, .pack_a = pack_a, .gemm = gemm};
