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

/* ---- the instructions of the rows ---- */

/* sum += w x. In assembly because gcc, given the intrinsic, loads all activations first and has no registers
 * left for the sums. */
DLLM_INLINE float32x4_t fma_by(float32x4_t sum, float32x4_t w, float x) {
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(w), "w"(x));
    return sum;
}

/* The two codes of a row and step, for every output. */
DLLM_INLINE int8x16_t spread(const int8_t *a, int row) {
    int8x16_t x;
    const int16_t *pair = (const int16_t *)a + row;
    __asm__("ld1r {%0.8h}, %1" : "=w"(x) : "Q"(*pair));
    return x;
}

/* sum += w0 x0 + w1 x1, neighbours added up: products of 4 outputs by two inputs each, for outputs in the
 * lower or the upper half of the weights. In assembly because gcc, given the intrinsics, keeps many products
 * at once and has no registers left for the sums. */
#define DOT(name, half, part)                                                                                \
    DLLM_INLINE int32x4_t name(int32x4_t sum, int8x16_t w0, int8x16_t w1, int8x16_t x0, int8x16_t x1) {      \
        int16x8_t products;                                                                                  \
        __asm__("smull" half " %1.8h, %2." part ", %4." part "\n\t"                                          \
                "smlal" half " %1.8h, %3." part ", %5." part "\n\t"                                          \
                "sadalp %0.4s, %1.8h"                                                                        \
                : "+w"(sum), "=&w"(products)                                                                 \
                : "w"(w0), "w"(w1), "w"(x0), "w"(x1));                                                       \
        return sum;                                                                                          \
    }
DOT(dot_low, "", "8b")
DOT(dot_high, "2", "16b")

DLLM_INLINE void add_row(int32x4_t *sum, int8x16x2_t w0, int8x16x2_t w1, int8x16_t x0, int8x16_t x1) {
    sum[0] = dot_low(sum[0], w0.val[0], w1.val[0], x0, x1);
    sum[1] = dot_high(sum[1], w0.val[0], w1.val[0], x0, x1);
    sum[2] = dot_low(sum[2], w0.val[1], w1.val[1], x0, x1);
    sum[3] = dot_high(sum[3], w0.val[1], w1.val[1], x0, x1);
}

/* Four codes of one row by four of 16 outputs: sums of 4 vectors. In assembly, load included, because gcc
 * would load all rows' codes first and have no registers left for the sums. */
DLLM_INLINE void dot_row(int32x4_t *sum, const int8x16_t *w, const int8_t *a) {
    int8x16_t x;
    __asm__("ldr %s4, %5\n\t"
            "sdot %0.4s, %6.16b, %4.4b[0]\n\t"
            "sdot %1.4s, %7.16b, %4.4b[0]\n\t"
            "sdot %2.4s, %8.16b, %4.4b[0]\n\t"
            "sdot %3.4s, %9.16b, %4.4b[0]"
            : "+w"(sum[0]), "+w"(sum[1]), "+w"(sum[2]), "+w"(sum[3]), "=&w"(x)
            : "m"(*(const int32_t *)a), "w"(w[0]), "w"(w[1]), "w"(w[2]), "w"(w[3]));
}

/* Eight codes of two rows, or of the last one, by eight of 8 outputs: 4 blocks of 2 x 2 sums. In assembly for
 * the same reason. */
#define MULTIPLY_PAIR(name, load, type)                                                                      \
    DLLM_INLINE void name(int32x4_t *block, const int8x16_t *w, const int8_t *a) {                           \
        int8x16_t x;                                                                                         \
        __asm__(load "\n\t"                                                                                  \
                     "smmla %0.4s, %4.16b, %6.16b\n\t"                                                       \
                     "smmla %1.4s, %4.16b, %7.16b\n\t"                                                       \
                     "smmla %2.4s, %4.16b, %8.16b\n\t"                                                       \
                     "smmla %3.4s, %4.16b, %9.16b"                                                           \
                : "+w"(block[0]), "+w"(block[1]), "+w"(block[2]), "+w"(block[3]), "=&w"(x)                   \
                : "m"(*(const type *)a), "w"(w[0]), "w"(w[1]), "w"(w[2]), "w"(w[3]));                        \
    }
MULTIPLY_PAIR(multiply_pair, "ldr %q4, %5", int8x16_t)
MULTIPLY_PAIR(multiply_last, "ldr %d4, %5", int8x8_t)

DLLM_INLINE void multiply_rows(const int mr, int32x4_t *block, const int8x16_t *w, const int8_t *a) {
    UNROLL for (int i = 0; i < mr / 2; i++) {
        multiply_pair(block + 4 * i, w, a + 16 * i);
    }
    if (mr % 2)
        multiply_last(block + 4 * (mr / 2), w, a + 8 * (mr - 1));
}

/* Two blocks of outputs 0, 1 and 2, 3 hold both rows' halves: row `r` of the two. */
DLLM_INLINE int32x4_t row_of(int32x4_t left, int32x4_t right, int r) {
    const int64x2_t l = vreinterpretq_s64_s32(left), h = vreinterpretq_s64_s32(right);
    return vreinterpretq_s32_s64(r ? vzip2q_s64(l, h) : vzip1q_s64(l, h));
}

/* ---- tiles ---- */

/* What the innermost loop of a kernel reads, and moves on. */
typedef struct {
    const int8_t *a, *b;  /* or what these bytes are */
    const int32_t *start; /* of the sums of each row, see dllm_tile: not for kernels of signed weights */
    const char *ahead;
    int ahead_step;
} streams;

/* The tile of a float32 or bfloat16 kernel with `vectors` vectors of outputs: `sum_steps` gives the sums [mr]
 * [vectors] of so many steps of kr products, which are added to float sums in memory. */
DLLM_INLINE void float_tile(const int mr, const int vectors, const int kr, const dllm_tile *t,
                            void (*sum_steps)(const int mr, streams *s, int64_t steps, float32x4_t *sum)) {
    streams s = {t->a, t->b, NULL, t->prefetch, t->prefetch_step};
    const int64_t chunk = DLLM_F32_CHUNK / kr;
    float total[MOST * LANES] = {0};
    for (int64_t left = t->k_steps; left > 0; left -= chunk) {
        float32x4_t sum[MOST];
        sum_steps(mr, &s, left < chunk ? left : chunk, sum);
        UNROLL for (int i = 0; i < mr * vectors; i++) {
            vst1q_f32(total + i * LANES, vaddq_f32(vld1q_f32(total + i * LANES), sum[i]));
        }
    }
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < vectors; j++)
            store_outputs(t, i, j, vld1q_f32(total + (i * vectors + j) * LANES));
}

/* start[g] = -8 * sum of the codes of group g: four-bit weights are stored as code + 8. Groups are multiples
 * of 64 codes, or one group; zeros follow k. */
static inline void start_at_8(const int8_t *codes, int64_t k, int64_t group, int32_t *start) {
    for (int64_t first = 0, g = 0; first < k; first += group, g++) {
        const int64_t last = first + group < k ? first + group : k;
        int32x4_t sum = vdupq_n_s32(0);
        for (int64_t i = first; i < last; i += 16)
            sum = vpadalq_s16(sum, vpaddlq_s8(vld1q_s8(codes + i)));
        start[g] = -8 * vaddvq_s32(sum);
    }
}

/* The lower and the upper halves of 16 bytes: 0 to 15, whatever the sign. */
DLLM_INLINE int8x16_t lower(int8x16_t w) {
    return vandq_s8(w, vdupq_n_s8(15));
}

DLLM_INLINE int8x16_t upper(int8x16_t w) {
    return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w), 4));
}

/* The tile of an int8 kernel with `vectors` vectors of outputs: `sum_steps` gives the integer sums [mr]
 * [vectors] of so many steps, which are scaled and added to float sums in memory, groups in ascending order.
 */
DLLM_INLINE void int8_tile(const int mr, const int vectors, const dllm_tile *t,
                           void (*sum_steps)(const int mr, streams *s, int64_t steps, int32x4_t *sum)) {
    streams s = {t->a, t->b, t->a_start, t->prefetch, t->prefetch_step};
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
        s.start += mr;
        b_scale += vectors * LANES;
    }
    if (!t->c)
        return;
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < vectors; j++)
            store_outputs(t, i, j, vmulq_n_f32(vld1q_f32(total + (i * vectors + j) * LANES), t->a_scale[i]));
}

#endif
