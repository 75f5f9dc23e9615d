/* A transformer layer as one call:
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

int64_t dllm_layer_scratch(const dllm_layer *w, int threads, int64_t rows) {
    layer_scratch s;
    return acceptable(w, threads, rows) ? plan(&s, w, threads, rows, NULL) : 0;
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
    dllm_packed_plan(&p, w, threads, rows, scratch);
    dllm_packed_fill(&p, &input);
    dllm_packed_gemm(&p, y, residual, NULL);
}

typedef struct {
    const dllm_layer *w;
    const dllm_ops *ops;
    const dllm_rows *rows, *queries;
    const int64_t *keep;
    float *qkv, *k, *v;
} rotate_job;

/* Row r: rotates its key and stores key and value; rotates its query where all rows are queries. */
static void rotate_and_store(void *arg, int64_t r, int worker) {
    const rotate_job *j = arg;
    const dllm_layer *w = j->w;
    int64_t stride = w->qkv->n, heads = w->heads * w->head_dim, kv = w->kv_heads * w->head_dim;
    float *q = j->qkv, *k = q + heads, *v = k + kv;
    (void)worker;
    if (j->rows->slots) {
        j->ops->rope(k, stride, w->kv_heads, w->head_dim, w->cos, w->sin, j->rows->positions, r, r + 1);
        j->ops->kv_store(k, v, stride, kv, j->rows->slots, r, r + 1, j->k, j->v);
    }
    if (!j->keep)
        j->ops->rope(q, stride, w->heads, w->head_dim, w->cos, w->sin, j->rows->positions, r, r + 1);
}

/* Moves the kept queries to the front, where they overwrite only rows that are done with; copies the
 * residual. */
static void keep_queries(const rotate_job *j, const float *x, float *y) {
    int64_t stride = j->w->qkv->n, heads = j->w->heads * j->w->head_dim, width = j->w->qkv->k;
    for (int64_t i = 0; i < j->queries->rows; i++) {
        memmove(j->qkv + i * stride, j->qkv + j->keep[i] * stride, (size_t)heads * sizeof(float));
        memcpy(y + i * width, x + j->keep[i] * width, (size_t)width * sizeof(float));
    }
    j->ops->rope(j->qkv, stride, j->w->heads, j->w->head_dim, j->w->cos, j->w->sin, j->queries->positions, 0,
                 j->queries->rows);
}

int dllm_layer_run(int threads, const dllm_layer *w, const dllm_rows *rows, const dllm_rows *queries,
                   const int64_t *keep, const float *x, float *k, float *v, float *y, void *scratch,
                   dllm_seconds *seconds) {
    layer_scratch s;
    double since;
    if (!acceptable(w, threads, rows->rows) || queries->rows < 1 || queries->sequences < 1)
        return DLLM_BAD_ARGUMENT;
    plan(&s, w, threads, rows->rows, scratch);
    lap(&since, NULL);
    linear(threads, w->qkv, DLLM_NORMED, x, w->attn_norm, w->eps, rows->rows, s.qkv, NULL, s.packed);
    lap(&since, &seconds->gemm);

    rotate_job job = {w, dllm_get_row(w->qkv->row)->ops, rows, queries, keep, s.qkv, k, v};
    dllm_parallel(rows->rows * w->qkv->n < 1 << 16 ? 1 : threads, rows->rows, rotate_and_store, &job);
    if (keep)
        keep_queries(&job, x, y);
    int64_t heads = w->heads * w->head_dim;
    dllm_attention a = {.q = s.qkv,
                        .q_stride = w->qkv->n,
                        .k = k,
                        .v = v,
                        .out = s.attended,
                        .out_stride = heads,
                        .q_offsets = queries->q_offsets,
                        .kv_offsets = queries->kv_offsets,
                        .sequences = queries->sequences,
                        .heads = w->heads,
                        .kv_heads = w->kv_heads,
                        .head_dim = w->head_dim};
    dllm_attend(job.ops, threads, &a, s.attention);
    lap(&since, &seconds->attention);

    int64_t n = queries->rows;
    linear(threads, w->attn_out, DLLM_PLAIN, s.attended, NULL, 0, n, y, keep ? y : x, s.packed);
    linear(threads, w->gate_up, DLLM_NORMED, y, w->mlp_norm, w->eps, n, s.gate_up, NULL, s.packed);
    lap(&since, &seconds->gemm);
    dllm_packed p;
    dllm_input activated = {.kind = DLLM_SWIGLU, .x = s.gate_up};
    dllm_packed_plan(&p, w->down, threads, n, s.packed);
    dllm_packed_fill(&p, &activated);
    lap(&since, &seconds->other);
    dllm_packed_gemm(&p, y, y, NULL);
    lap(&since, &seconds->gemm);
    return DLLM_OK;
}
