/* Vocabulary statistics of rows of logits, block by block: what a decoder needs, without rows x vocabulary.
 *
 * Contract: ops.h. Layout: a block is [rows, columns] logits, `stride` apart; states are an array of structs,
 * one a row. A block's state depends on the block alone; states are merged in ascending order of blocks.
 *
 * -inf logits have probability zero. A block of nothing but -inf has total 0 and spoils nothing; a row of
 * nothing but -inf ends with logsumexp -inf and entropy NaN. NaN logits make top, logsumexp and entropy NaN.
 *
 * Why it is fast: one pass for maximum, runner-up and argmax together, held per lane and reduced once; one
 * pass for the exponentials, on a block that is still in L1 or L2. Lanes add at most CHUNK vectors in float,
 * then in double, so that a block may be the whole vocabulary.
 */
#include "ops.h"
#include "ops_math.h"

#define CHUNK 64

/* Numpy's order: NaN above everything. */
static int above(float a, float b) {
    return a > b || (a != a && b == b);
}

static void insert(dllm_statistics *s, float x, int64_t id) {
    if (above(x, s->top)) {
        s->second = s->top;
        s->top = x;
        s->id = id;
    } else if (above(x, s->second)) {
        s->second = x;
    }
}

/* Maximum, runner-up and first argmax of a row; false if it holds NaN. */
static int leaders(const float *x, int64_t columns, int64_t first, dllm_statistics *s) {
    vec top = vec_set1(-INFINITY), second = top;
    ivec at = {VEC_ALL(VEC_LANE, 0)}, column = at, unordered = {0};
    for (int64_t i = 0; i < columns; i += VL) {
        const vec v = vec_load_n(x + i, columns - i, -INFINITY);
        unordered |= v != v;
        at = ivec_select(v > top, column, at);
        second = vec_max(vec_min(v, top), second);
        top = vec_max(v, top);
        column += VL;
    }
    *s = (dllm_statistics){first + at[0], top[0], second[0], 0, 0};
    int ordered = !unordered[0];
    for (int lane = 1; lane < VL; lane++) {
        const int64_t id = first + at[lane];
        if (top[lane] == s->top && id < s->id)
            s->id = id;
        insert(s, top[lane], id);
        insert(s, second[lane], id);
        ordered &= !unordered[lane];
    }
    return ordered;
}

/* The same for a row with NaN, whose softmax is NaN. */
static void leaders_with_nan(const float *x, int64_t columns, int64_t first, dllm_statistics *s) {
    *s = (dllm_statistics){first, -INFINITY, -INFINITY, NAN, NAN};
    for (int64_t i = 0; i < columns; i++)
        insert(s, x[i], first + i);
}

/* total and moment of a row against s->top. */
static void weigh(const float *x, int64_t columns, dllm_statistics *s) {
    const vec top = vec_set1(s->top), low = vec_set1(EXP_LOW);
    for (int64_t start = 0; start < columns; start += CHUNK * VL) {
        const int64_t end = columns - start < CHUNK * VL ? columns : start + CHUNK * VL;
        vec total = {0}, moment = {0};
        for (int64_t i = start; i < end; i += VL) {
            const vec shifted = vec_load_n(x + i, columns - i, -INFINITY) - top;
            const vec weight = vec_exp(shifted);
            total += weight;
            moment = vec_fma(weight, vec_max(shifted, low), moment); /* 0 * -inf is 0 here */
        }
        for (int lane = 0; lane < VL; lane++) {
            s->total += total[lane];
            s->moment += moment[lane];
        }
    }
}

void DLLM_OP(statistics_block)(const float *logits, int64_t stride, int64_t columns, int64_t first,
                               int64_t begin, int64_t end, dllm_statistics *states) {
    for (int64_t row = begin; row < end; row++) {
        const float *x = logits + row * stride;
        dllm_statistics s;
        if (!leaders(x, columns, first, &s)) {
            leaders_with_nan(x, columns, first, &s);
        } else if (s.top > -INFINITY) {
            weigh(x, columns, &s);
        }
        states[row] = s;
    }
}

void DLLM_OP(statistics_merge)(dllm_statistics *into, const dllm_statistics *from, int64_t begin,
                               int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const int later = above(from[row].top, into[row].top);
        const dllm_statistics lower = later ? into[row] : from[row];
        dllm_statistics s = later ? from[row] : into[row];
        if (above(lower.top, s.second))
            s.second = lower.top;
        if (lower.total != 0) {
            const double shift = (double)lower.top - s.top, factor = exp(shift);
            s.total += factor * lower.total;
            s.moment += factor * (lower.moment + shift * lower.total);
        }
        into[row] = s;
    }
}

void DLLM_OP(statistics_finish)(const dllm_statistics *states, int64_t begin, int64_t end, int64_t *ids,
                                float *top, float *second, float *logsumexp, float *entropy) {
    for (int64_t row = begin; row < end; row++) {
        const dllm_statistics s = states[row];
        const double log_total = log(s.total);
        ids[row] = s.id;
        top[row] = s.top;
        second[row] = s.second;
        logsumexp[row] = (float)(s.top + log_total);
        entropy[row] = (float)(log_total - s.moment / s.total);
    }
}
