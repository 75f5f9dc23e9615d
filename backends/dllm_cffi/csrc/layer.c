/* Transformer layers as one call, each
 *
 *     h = x + attn_out(attention(rope(qkv(rms_norm(x)))))
 *     y = h + down(swiglu(gate_up(rms_norm(h))))
 *
 * Norm and activation are fused with the quantisation of the next linear layer, residuals with the end of the
 * previous one. */
#include <string.h>
#include <time.h>

#include "linear.h"
#include "pool.h"

enum { SMALL_ROTATION = 1 << 16 }; /* numbers below which another thread costs more than it saves */

typedef struct {
    float *qkv;      /* [rows, (H + 2 G) D] */
    float *attended; /* [queries, H D] */
    float *gate_up;  /* [queries, 2 m]; shares its memory with the two above */
    void *packed;    /* dllm_packed of the linear layer at hand */
    void *attention;
} layer_scratch;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t plan(layer_scratch *s, const dllm_layer *w, int threads, int64_t rows, void *base) {
    const dllm_linear *const linears[] = {w->qkv, w->attn_out, w->gate_up, w->down};
    const int64_t number = sizeof(float);
    int64_t used = 0, packed = 0;
    s->qkv = dllm_carve(base, &used, rows * w->qkv->n * number);
    s->attended = dllm_carve(base, &used, rows * w->heads * w->head_dim * number);
    s->gate_up = base;
    used = larger(used, dllm_round_up(rows * w->gate_up->n * number, 64));
    for (int i = 0; i < 4; i++)
        packed = larger(packed, dllm_linear_scratch(linears[i], threads, rows));
    s->packed = dllm_carve(base, &used, packed);
    s->attention = dllm_carve(base, &used, dllm_attention_scratch(w->qkv->row, threads, w->head_dim));
    return used;
}

static int acceptable(const dllm_layer *w, int threads, int64_t rows) {
    int64_t width = w->qkv->k, heads = w->heads * w->head_dim;
    return w->heads > 0 && w->kv_heads > 0 && w->heads % w->kv_heads == 0 && w->head_dim > 0 &&
           w->qkv->n == heads + 2 * w->kv_heads * w->head_dim && w->attn_out->k == heads &&
           w->attn_out->n == width && w->gate_up->k == width && w->gate_up->n == 2 * w->down->k &&
           w->down->n == width && dllm_linear_scratch(w->qkv, threads, rows) &&
           dllm_linear_scratch(w->attn_out, threads, rows) &&
           dllm_linear_scratch(w->gate_up, threads, rows) && dllm_linear_scratch(w->down, threads, rows);
}

/* Adds the time since the last call to *kind. */
static void lap(double *since, double *kind) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (kind)
        *kind += now - *since;
    *since = now;
}

static void linear(int threads, const dllm_linear *w, int kind, const float *x, const float *norm, float eps,
                   int64_t rows, float *y, const float *residual, void *scratch) {
    dllm_packed p;
    dllm_input input = {.kind = kind, .eps = eps, .x = x, .norm = norm};
    dllm_packed_plan(&p, w, threads, rows, &input, scratch);
    dllm_packed_gemm(&p, y, residual, NULL);
}

/* What the projection of queries, keys and values works on. `queries` are all rows, or those that `keep`
 * names, in which case `x_kept` holds their inputs. */
typedef struct {
    int threads;
    const dllm_layer *w;
    const dllm_ops *ops;
    const dllm_rows *rows, *queries;
    const float *x, *x_kept;
    const dllm_kv *kv;
    float *qkv;
    void *packed;
} projection;

static int64_t query_width(const projection *j) {
    return j->w->heads * j->w->head_dim;
}

/* Row r: rotates its key, stores key and value. */
static void store_row(void *arg, int64_t r, int worker) {
    const projection *j = arg;
    const dllm_layer *w = j->w;
    float *k = j->qkv + query_width(j), *v = k + w->kv_heads * w->head_dim;
    (void)worker;
    j->ops->rope(k, w->qkv->n, w->kv_heads, w->head_dim, w->cos, w->sin, j->rows->positions, r, r + 1);
    j->ops->kv_store(k, v, w->qkv->n, w->kv_heads, w->head_dim, j->rows->slots, r, r + 1, j->kv->k, j->kv->v,
                     j->kv->slot_stride, j->kv->head_stride);
}

static void rotate_query(void *arg, int64_t r, int worker) {
    const projection *j = arg;
    const dllm_layer *w = j->w;
    (void)worker;
    j->ops->rope(j->qkv, w->qkv->n, w->heads, w->head_dim, w->cos, w->sin, j->queries->positions, r, r + 1);
}

/* Runs `row` over all rows, on one thread where that is done sooner. */
static void each_row(projection *j, int64_t rows, void (*row)(void *, int64_t, int)) {
    dllm_parallel(rows * j->w->qkv->n < SMALL_ROTATION ? 1 : j->threads, rows, row, j);
}

/* The columns of qkv in the panels [first, last), for rows x. */
static void project_part(const projection *j, const float *x, int64_t rows, int64_t first, int64_t last) {
    dllm_packed p;
    dllm_input input = {.kind = DLLM_NORMED, .eps = j->w->eps, .x = x, .norm = j->w->attn_norm};
    dllm_packed_plan(&p, j->w->qkv, j->threads, rows, &input, j->packed);
    dllm_packed_gemm_part(&p, first, last, j->qkv);
}

/* Rotated queries to the first columns of qkv, rotated keys and values to the store. Rows that are not kept
 * get no query, rows without a slot no key: this is why the last layer costs less. A panel that holds both
 * queries and keys is computed twice; so keys are stored before the queries overwrite it. */
static void project(projection *j, dllm_seconds *seconds, double *since) {
    const dllm_linear *qkv = j->w->qkv;
    int64_t nr = dllm_kernel(qkv)->nr, panels = dllm_ceil_div(qkv->n, nr);
    int all = !j->x_kept && j->rows->slots;
    if (j->rows->slots) {
        project_part(j, j->x, j->rows->rows, all ? 0 : query_width(j) / nr, panels);
        lap(since, &seconds->gemm);
        each_row(j, j->rows->rows, store_row);
        lap(since, &seconds->attention);
    }
    if (!all) {
        const float *x = j->x_kept ? j->x_kept : j->x;
        project_part(j, x, j->queries->rows, 0, dllm_ceil_div(query_width(j), nr));
        lap(since, &seconds->gemm);
    }
    each_row(j, j->queries->rows, rotate_query);
}

static void run_layer(int threads, const dllm_layer *w, const dllm_rows *rows, const dllm_rows *queries,
                      const int64_t *keep, const float *x, const dllm_kv *kv, float *y, void *scratch,
                      dllm_seconds *seconds) {
    layer_scratch s;
    double since;
    int64_t n = queries->rows, width = w->qkv->k;
    plan(&s, w, threads, rows->rows, scratch);
    lap(&since, NULL);
    for (int64_t i = 0; keep && i < n; i++)
        memcpy(y + i * width, x + keep[i] * width, (size_t)width * sizeof *y);
    projection job = {.threads = threads,
                      .w = w,
                      .ops = dllm_get_row(w->qkv->row)->ops,
                      .rows = rows,
                      .queries = queries,
                      .x = x,
                      .x_kept = keep ? y : NULL,
                      .qkv = s.qkv,
                      .kv = kv,
                      .packed = s.packed};
    project(&job, seconds, &since);

    int64_t heads = w->heads * w->head_dim;
    dllm_attention a = {.q = s.qkv,
                        .q_stride = w->qkv->n,
                        .k = kv->k,
                        .v = kv->v,
                        .slot_stride = kv->slot_stride,
                        .head_stride = kv->head_stride,
                        .out = s.attended,
                        .out_stride = heads,
                        .q_offsets = queries->q_offsets,
                        .kv_offsets = queries->kv_offsets,
                        .visible = queries->visible,
                        .sequences = queries->sequences,
                        .heads = w->heads,
                        .kv_heads = w->kv_heads,
                        .head_dim = w->head_dim};
    dllm_attend(job.ops, threads, &a, s.attention);
    lap(&since, &seconds->attention);

    linear(threads, w->attn_out, DLLM_PLAIN, s.attended, NULL, 0, n, y, keep ? y : x, s.packed);
    dllm_packed p;
    dllm_input normed = {.kind = DLLM_NORMED, .eps = w->eps, .x = y, .norm = w->mlp_norm};
    dllm_packed_plan(&p, w->gate_up, threads, n, &normed, s.packed);
    int activated = dllm_packed_swiglu(&p, s.gate_up);
    if (!activated)
        dllm_packed_gemm(&p, s.gate_up, NULL, NULL);
    linear(threads, w->down, activated ? DLLM_PLAIN : DLLM_SWIGLU, s.gate_up, NULL, 0, n, y, y, s.packed);
    lap(&since, &seconds->gemm);
}

/* Between two layers x lives in scratch, in two buffers by turns. Gives the bytes of it all, 0 for layers
 * that do not fit together. */
static int64_t plan_layers(int64_t count, const dllm_layer *const *layers, int threads, int64_t rows,
                           float **between, void *base) {
    int64_t used = 0, largest = 0;
    layer_scratch s;
    for (int64_t i = 0; i < count; i++) {
        if (!acceptable(layers[i], threads, rows) || layers[i]->qkv->k != layers[0]->qkv->k)
            return 0;
        largest = larger(largest, plan(&s, layers[i], threads, rows, NULL));
    }
    for (int i = 0; i < 2 && i < count - 1; i++)
        between[i] = dllm_carve(base, &used, rows * layers[0]->qkv->k * (int64_t)sizeof(float));
    between[2] = dllm_carve(base, &used, largest);
    return used;
}

int64_t dllm_layers_scratch(int64_t count, const dllm_layer *const *layers, int threads, int64_t rows) {
    float *between[3];
    return plan_layers(count, layers, threads, rows, between, NULL);
}

int dllm_layers_run(int threads, int64_t count, const dllm_layer *const *layers, const dllm_rows *rows,
                    const dllm_rows *queries, const int64_t *keep, const float *x, const dllm_kv *const *kv,
                    float *y, void *scratch, dllm_seconds *seconds) {
    float *between[3];
    if (queries->rows < 1 || queries->sequences < 1 ||
        !plan_layers(count, layers, threads, rows->rows, between, scratch))
        return DLLM_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++) {
        int last = i == count - 1;
        float *to = last ? y : between[i % 2];
        run_layer(threads, layers[i], rows, last ? queries : rows, last ? keep : NULL, x, kv[i], to,
                  between[2], seconds + i);
        x = to;
    }
    return DLLM_OK;
}
