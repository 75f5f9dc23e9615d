/* Attention over ragged sequences, bidirectional or to leading slots, as independent work items.
 *
 * Contract: ops.h. A work item is (sequence, key/value head, block of query rows). The query rows of a
 * key/value head are its H / G query heads of every query, query-major, so that grouped heads fill vectors
 * and share each load of keys and values. Every row is computed lane by lane in one fixed order: the result
 * depends neither on its neighbours nor on who ran the item.
 *
 * Layout of scratch, per item; W = 2 VL query rows are a tile:
 *
 *     queries  [tiles][D][W]           transposed: one lane per query row
 *     output   [ROWS][Dp]              unnormalised sums; Dp = D rounded up to W
 *     keys     [KEYS][D]               copy of a key block, unless it lies in one piece in the store
 *     values   [Dp / W][KEYS][W]       panels of W columns, zero behind D
 *     scores   [KEYS][W]               of one tile, first scores, then weights
 *     maximum, total [ROWS], rescale [W]
 *
 * For each key block and tile: scores = queries x keys (TILE keys x 2 vectors in registers, D deep), the
 * maximum, exponential and sum of each lane with no horizontal step, then output += weights x values (TILE
 * rows x 2 vectors in registers, KEYS deep). Online softmax: what was summed under an older maximum is scaled
 * by exp(old - new), which is exactly 1 when the maximum stands. Scores of slots that a row may not see
 * become -inf; blocks that no row of the item sees are not read.
 *
 * Register budget (AVX-512): 16 accumulators, 2 operands, 1 broadcast of 32. Why it is fast: 2 loads and TILE
 * broadcasts feed 2 TILE FMAs; a tile's queries and scores stay in L1, the block in L2. Measured on a
 * shared Zen4 machine, D = 128, one thread, 32 heads that each lie in one piece: 81 to 84 % of the FMA peak
 * at 512 rows against 512 keys, 70 to 73 % at 128 against 128, 70 to 73 % at 32 against 544, whose 18 MB of
 * keys and values come from memory. What helped there: heads in one piece (4 points), touching the next block
 * during the scores of this one (11), keys used where they lie (5). At 128 x 128 softmax takes 6 % of the
 * time, loading queries 6 %.
 */
#include "ops.h"
#include "ops_math.h"

#define ROWS 128
#define KEYS 64
#define W (2 * VL)
#if VL == 16 || defined(__aarch64__) /* 32 vector registers */
#define TILE 8
#else
#define TILE 4
#endif
#define AHEAD (8 * TILE) /* bytes of the next block that a step touches: together all its keys and values */

/* Offsets of the arrays in scratch, in floats. */
typedef struct {
    int64_t padded; /* Dp */
    int64_t queries, output, keys, values, scores, maximum, total, rescale, size;
} layout;

/* A work item: rows [first, first + rows) of the query rows of one key/value head of one sequence. */
typedef struct {
    int64_t sequence, kv_head, first, rows;
} work;

static int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

static layout lay_out(int64_t head_dim) {
    const int64_t padded = round_up(head_dim, W);
    const int64_t sizes[] = {
        ROWS * padded, ROWS * padded, KEYS * padded, KEYS * padded, KEYS * W, ROWS, ROWS, W,
    };
    int64_t at[9] = {0};
    for (int i = 0; i < 8; i++)
        at[i + 1] = at[i] + round_up(sizes[i], 16);
    return (layout){padded, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]};
}

int64_t DLLM_OP(attention_scratch)(int64_t head_dim) {
    return lay_out(head_dim).size * (int64_t)sizeof(float) + 64;
}

/* Query rows that share each key/value head of sequence s. */
static int64_t shared_rows(const dllm_attention *a, int64_t s) {
    return (a->q_offsets[s + 1] - a->q_offsets[s]) * (a->heads / a->kv_heads);
}

int64_t DLLM_OP(attention_items)(const dllm_attention *a) {
    int64_t items = 0;
    for (int64_t s = 0; s < a->sequences; s++) {
        items += round_up(shared_rows(a, s), ROWS) / ROWS * a->kv_heads;
    }
    return items;
}

/* Item number `index`: blocks of a head are neighbours, so that they find its keys in the cache. */
static work find_work(const dllm_attention *a, int64_t index) {
    int64_t s = 0, blocks = 0;
    for (;; s++) {
        blocks = round_up(shared_rows(a, s), ROWS) / ROWS;
        if (index < blocks * a->kv_heads)
            break;
        index -= blocks * a->kv_heads;
    }
    const int64_t first = index % blocks * ROWS, left = shared_rows(a, s) - first;
    return (work){s, index / blocks, first, left < ROWS ? left : ROWS};
}

/* Where row i of the item lies in an array of rows `stride` apart, H D wide. */
static int64_t row_at(const dllm_attention *a, const work *w, int64_t i, int64_t stride) {
    const int64_t shared = a->heads / a->kv_heads, n = w->first + i;
    const int64_t head = w->kv_head * shared + n % shared;
    return (a->q_offsets[w->sequence] + n / shared) * stride + head * a->head_dim;
}

/* One stage of a transposition: lane s of x against lane 0 of y, for every pair of rows s apart. */
#define LOW(lane, s) ((lane) & (s) ? VL + (lane) - (s) : (lane))
#define HIGH(lane, s) ((lane) & (s) ? VL + (lane) : (lane) + (s))
#define EXCHANGE(x, s)                                                                                       \
    UNROLL for (int i = 0; i < VL; i++) {                                                                    \
        if (i & (s))                                                                                         \
            continue;                                                                                        \
        const vec low = VEC_SHUFFLE(x[i], x[i + (s)], LOW, s);                                               \
        x[i + (s)] = VEC_SHUFFLE(x[i], x[i + (s)], HIGH, s);                                                 \
        x[i] = low;                                                                                          \
    }

INLINE void transpose(vec x[VL]) {
#if VL == 16
    EXCHANGE(x, 8)
#endif
#if VL >= 8
    EXCHANGE(x, 4)
#endif
    EXCHANGE(x, 2)
    EXCHANGE(x, 1)
}

/* Query rows to [tiles][D][W]; lanes behind the last row are zero. */
static void load_queries(const dllm_attention *a, const work *w, float *queries) {
    const int64_t dim = a->head_dim;
    for (int64_t first = 0; first < w->rows; first += VL) {
        float *to = queries + first / W * W * dim + first % W;
        const float *from[VL];
        for (int64_t i = 0; i < VL; i++) {
            from[i] = first + i < w->rows ? a->q + row_at(a, w, first + i, a->q_stride) : NULL;
        }
        for (int64_t d = 0; d < dim; d += VL) {
            vec x[VL];
            UNROLL for (int i = 0; i < VL; i++) {
                x[i] = from[i] ? vec_load_n(from[i] + d, dim - d, 0) : vec_set1(0);
            }
            transpose(x);
            UNROLL for (int i = 0; i < VL; i++) {
                if (d + i < dim)
                    vec_store(to + (d + i) * W, x[i]);
            }
        }
    }
}

static const float *block_at(const dllm_attention *a, const float *store, int64_t kv_head, int64_t slot) {
    return store + slot * a->slot_stride + kv_head * a->head_stride;
}

/* The `count` keys from slot `slot` on, as [whole tiles][D]: where they lie, or a copy that is filled up with
 * zeros. */
static const float *load_keys(const dllm_attention *a, int64_t kv_head, int64_t slot, int64_t count,
                              float *copy) {
    const int64_t dim = a->head_dim;
    const float *k = block_at(a, a->k, kv_head, slot);
    if (a->slot_stride == dim && count % TILE == 0)
        return k;
    for (int64_t t = 0; t < count; t++)
        memcpy(copy + t * dim, k + t * a->slot_stride, (size_t)dim * sizeof *k);
    memset(copy + count * dim, 0, (size_t)((round_up(count, TILE) - count) * dim) * sizeof *copy);
    return copy;
}

static void load_values(const dllm_attention *a, int64_t kv_head, int64_t slot, int64_t count,
                        float *values) {
    const int64_t dim = a->head_dim;
    const float *v = block_at(a, a->v, kv_head, slot);
    for (int64_t t = 0; t < count; t++, v += a->slot_stride) {
        for (int64_t d = 0; d < dim; d += VL) {
            vec_store(values + (d / W * KEYS + t) * W + d % W, vec_load_n(v + d, dim - d, 0));
        }
    }
}

/* scores [TILE][W] = scale * keys [TILE][D] . queries [D][W], the first `vecs` vectors of each row. Touches
 * memory `ahead`, a line or half of one a step. */
INLINE void score_tile(const float *queries, const float *keys, int64_t dim, float scale, float *scores,
                       const char *ahead, const int vecs) {
    vec sum[TILE][2] = {{{0}}};
    for (int64_t d = 0; d < dim; d++) {
        __builtin_prefetch(ahead + d * AHEAD, 0, 2);
        vec q[2];
        UNROLL for (int c = 0; c < vecs; c++) q[c] = vec_load(queries + d * W + c * VL);
        UNROLL for (int t = 0; t < TILE; t++) {
            const vec key = vec_set1(keys[t * dim + d]);
            UNROLL for (int c = 0; c < vecs; c++) sum[t][c] = vec_fma(q[c], key, sum[t][c]);
        }
    }
    UNROLL for (int t = 0; t < TILE; t++) {
        UNROLL for (int c = 0; c < vecs; c++) vec_store(scores + t * W + c * VL, sum[t][c] * vec_set1(scale));
    }
}

/* Scores [count][W] -> weights exp(score - maximum), in one vector of rows; updates maximum and total and
 * gives the factor for what was summed before. */
INLINE void softmax_lanes(float *scores, int64_t count, float *maximum, float *total, float *rescale) {
    const vec before = vec_load(maximum);
    vec most = before, sum = {0};
    for (int64_t t = 0; t < count; t++)
        most = vec_max(vec_load(scores + t * W), most);
    const vec factor = vec_exp(before - most);
    for (int64_t t = 0; t < count; t++) {
        const vec weight = vec_exp(vec_load(scores + t * W) - most);
        sum += weight;
        vec_store(scores + t * W, weight);
    }
    vec_store(maximum, most);
    vec_store(total, vec_fma(vec_load(total), factor, sum));
    vec_store(rescale, factor);
}

/* output [TILE][Dp] = rescale * output + weights [count][TILE of W] x values [count][W], `vecs` vectors. */
INLINE void value_tile(const float *weights, const float *values, int64_t count, const float *rescale,
                       float *output, int64_t padded, const int vecs) {
    vec sum[TILE][2];
    UNROLL for (int r = 0; r < TILE; r++) {
        UNROLL for (int c = 0; c < vecs; c++) {
            sum[r][c] = vec_load(output + r * padded + c * VL) * vec_set1(rescale[r]);
        }
    }
    for (int64_t t = 0; t < count; t++) {
        vec v[2];
        UNROLL for (int c = 0; c < vecs; c++) v[c] = vec_load(values + t * W + c * VL);
        UNROLL for (int r = 0; r < TILE; r++) {
            const vec weight = vec_set1(weights[t * W + r]);
            UNROLL for (int c = 0; c < vecs; c++) sum[r][c] = vec_fma(weight, v[c], sum[r][c]);
        }
    }
    UNROLL for (int r = 0; r < TILE; r++) {
        UNROLL for (int c = 0; c < vecs; c++) vec_store(output + r * padded + c * VL, sum[r][c]);
    }
}

/* All keys of a block. Its steps together touch the next block: keys in the first half of them, then values.
 */
static void score_keys(const float *queries, const float *keys, int64_t count, int64_t dim, int64_t rows,
                       const float *next_keys, const float *next_values, float *scores) {
    const float scale = (float)(1.0 / sqrt((double)dim));
    for (int64_t t = 0; t < count; t += TILE) {
        const char *ahead = (const char *)(t < KEYS / 2 ? next_keys : next_values);
        ahead += t % (KEYS / 2) / TILE * dim * AHEAD;
        if (rows > VL) {
            score_tile(queries, keys + t * dim, dim, scale, scores + t * W, ahead, 2);
        } else {
            score_tile(queries, keys + t * dim, dim, scale, scores + t * W, ahead, 1);
        }
    }
}

/* How many leading slots row i of the item sees. */
static int64_t visible_to(const dllm_attention *a, const work *w, int64_t i) {
    const int64_t row = a->q_offsets[w->sequence] + (w->first + i) / (a->heads / a->kv_heads);
    return a->visible ? a->visible[row] : a->kv_offsets[w->sequence + 1] - a->kv_offsets[w->sequence];
}

/* Scores [count][W] of the slots [at, at + count) that the rows from `first` on may not see. */
static void hide(const dllm_attention *a, const work *w, int64_t first, int64_t rows, int64_t at,
                 int64_t count, float *scores) {
    for (int64_t i = 0; i < rows; i++) {
        const int64_t seen = visible_to(a, w, first + i) - at;
        for (int64_t t = seen > 0 ? seen : 0; t < count; t++)
            scores[t * W + i] = -INFINITY;
    }
}

static void add_values(const float *weights, const float *values, int64_t count, int64_t dim, int64_t rows,
                       const float *rescale, float *output) {
    const int64_t padded = round_up(dim, W);
    for (int64_t d = 0; d < dim; d += W) {
        const float *panel = values + d * KEYS;
        for (int64_t r = 0; r < rows; r += TILE) {
            float *to = output + r * padded + d;
            if (dim - d > VL) {
                value_tile(weights + r, panel, count, rescale + r, to, padded, 2);
            } else {
                value_tile(weights + r, panel, count, rescale + r, to, padded, 1);
            }
        }
    }
}

static void store_output(const dllm_attention *a, const work *w, const float *output, const float *total) {
    const int64_t dim = a->head_dim, padded = round_up(dim, W);
    for (int64_t i = 0; i < w->rows; i++) {
        float *to = a->out + row_at(a, w, i, a->out_stride);
        const vec sum = vec_set1(total[i]);
        for (int64_t d = 0; d < dim; d += VL) {
            vec_store_n(to + d, vec_load(output + i * padded + d) / sum, dim - d);
        }
    }
}

void DLLM_OP(attention_item)(const dllm_attention *a, int64_t item, void *scratch) {
    const work w = find_work(a, item);
    const layout at = lay_out(a->head_dim);
    float *const base = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    float *const maximum = base + at.maximum, *const total = base + at.total;
    const int64_t begin = a->kv_offsets[w.sequence];
    int64_t end = begin;
    load_queries(a, &w, base + at.queries);
    memset(base + at.output, 0, (size_t)(ROWS * at.padded) * sizeof(float));
    for (int i = 0; i < ROWS; i++) {
        const int64_t seen = i < w.rows ? visible_to(a, &w, i) : 0;
        maximum[i] = -FLT_MAX; /* not -inf: a block of -inf scores must not give -inf - -inf */
        total[i] = seen > 0 ? 0 : 1;
        end = begin + seen > end ? begin + seen : end;
    }
    for (int64_t slot = begin; slot < end; slot += KEYS) {
        const int64_t count = end - slot < KEYS ? end - slot : KEYS;
        const int64_t next = slot + count < end ? slot + count : slot;
        const float *keys = load_keys(a, w.kv_head, slot, count, base + at.keys);
        load_values(a, w.kv_head, slot, count, base + at.values);
        for (int64_t first = 0; first < w.rows; first += W) {
            const int64_t rows = w.rows - first < W ? w.rows - first : W;
            float *const scores = base + at.scores, *const rescale = base + at.rescale;
            score_keys(base + at.queries + first * a->head_dim, keys, count, a->head_dim, rows,
                       block_at(a, a->k, w.kv_head, next), block_at(a, a->v, w.kv_head, next), scores);
            if (a->visible)
                hide(a, &w, first, rows, slot - begin, count, scores);
            for (int64_t r = 0; r < rows; r += VL) {
                softmax_lanes(scores + r, count, maximum + first + r, total + first + r, rescale + r);
            }
            add_values(scores, base + at.values, count, a->head_dim, rows, rescale,
                       base + at.output + first * at.padded);
        }
    }
    store_output(a, &w, base + at.output, total);
}
