/* Pieces that the NEON GEMM kernels share: a kernel is its tile's shape and its innermost loop. */
#ifndef DLLM_NEON_H
#define DLLM_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "row.h"
#include "unroll.h"

#define DLLM_CASES_8 DLLM_CASES_7 DLLM_CASE(8)

enum { LANES = 4, MOST = 24 }; /* a vector is 4 outputs; a tile has at most 24 vectors of sums */

/* Touches a line of the next panel. */
DLLM_INLINE const char *prefetch_next(const char *at, int step) {
    __builtin_prefetch(at, 0, 2);
    return at + step;
}

/* Words of `word` bytes of mr rows: [mr][steps] -> [steps][mr]. */
DLLM_INLINE void interleave(const char *rows, int64_t ld, int mr, int64_t steps, const size_t word,
                            char *to) {
    for (int64_t k = 0; k < steps; k++, rows += word)
        for (int i = 0; i < mr; i++, to += word)
            memcpy(to, rows + i * ld, word);
}

/* c = y + bias + residual for one vector of row i. */
DLLM_INLINE void store_outputs(const dllm_tile *t, int i, int vector, float32x4_t y) {
    const int64_t at = i * t->ldc + vector * LANES;
    const int left = t->cols - vector * LANES;
    if (t->bias)
        y = vaddq_f32(y, vld1q_f32(t->bias + vector * LANES));
    if (left >= LANES) {
        if (t->residual)
            y = vaddq_f32(y, vld1q_f32(t->residual + at));
        vst1q_f32(t->c + at, y);
    } else {
        float lanes[LANES];
        vst1q_f32(lanes, y);
        for (int j = 0; j < left; j++)
            t->c[at + j] = t->residual ? lanes[j] + t->residual[at + j] : lanes[j];
    }
}

/* The integer sums of group g, for checks. */
static inline void store_sums(const dllm_tile *t, int vectors, int64_t group, const int32x4_t *sum) {
    for (int i = 0; i < t->mr; i++) {
        int32_t line[MOST * LANES];
        for (int j = 0; j < vectors; j++)
            vst1q_s32(line + j * LANES, sum[i * vectors + j]);
        memcpy(t->acc + group * t->acc_group + i * t->ldc, line, (size_t)t->cols * sizeof *line);
    }
}

/* What the innermost loop of an int8 kernel reads, and moves on. */
typedef struct {
    const int8_t *a, *b;
    const char *ahead;
    int ahead_step;
} streams;

/* The tile of an int8 kernel with `vectors` vectors of outputs: `sum_steps` gives the integer sums [mr]
 * [vectors] of so many steps, which are scaled and added to float sums in memory, groups in ascending order.
 */
DLLM_INLINE void int8_tile(const int mr, const int vectors, const dllm_tile *t,
                           void (*sum_steps)(const int mr, streams *s, int64_t steps, int32x4_t *sum)) {
    streams s = {t->a, t->b, t->prefetch, t->prefetch_step};
    const float *b_scale = t->b_scale;
    float total[MOST * LANES] = {0};
    int64_t group = 0;
    for (int64_t left = t->k_steps; left > 0; left -= t->group_steps, group++) {
        int32x4_t sum[MOST];
        sum_steps(mr, &s, left < t->group_steps ? left : t->group_steps, sum);
        UNROLL for (int i = 0; i < mr * vectors; i++) {
            const float32x4_t scale = vld1q_f32(b_scale + i % vectors * LANES);
            const float32x4_t y = vld1q_f32(total + i * LANES);
            vst1q_f32(total + i * LANES, vfmaq_f32(y, vcvtq_f32_s32(sum[i]), scale));
        }
        if (t->acc) {
            int32x4_t sums[MOST]; /* a copy: `sum` itself stays in registers */
            UNROLL for (int i = 0; i < mr * vectors; i++) {
                sums[i] = sum[i];
            }
            store_sums(t, vectors, group, sums);
        }
        b_scale += vectors * LANES;
    }
    if (!t->c)
        return;
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < vectors; j++)
            store_outputs(t, i, j, vmulq_n_f32(vld1q_f32(total + (i * vectors + j) * LANES), t->a_scale[i]));
}

#endif
