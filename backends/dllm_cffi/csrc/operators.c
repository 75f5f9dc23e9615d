/* The operators that are not linear layers: the range kernels of ops.h, threaded. */
#include "pool.h"
#include "row.h"

enum {
    SMALL = 1 << 16,    /* numbers below which another thread costs more than it saves */
    PER_ITEM = 1 << 12, /* numbers of a work item, at least */
};

typedef struct {
    const dllm_ops *ops;
    int64_t rows, width, chunk; /* rows of a work item */
    const float *x, *y, *cos, *sin;
    float *out;
    const void *table;
    const int64_t *ids;
    int64_t heads, head_dim;
    float eps;
    int stored;
} range_job;

static int64_t range_end(const range_job *job, int64_t begin) {
    return begin + job->chunk < job->rows ? begin + job->chunk : job->rows;
}

static int run(int row, int threads, range_job *job, void (*body)(void *, int64_t, int)) {
    const dllm_row *r = dllm_get_row(row);
    if (!r || threads < 1 || job->rows < 0 || job->width < 1)
        return DLLM_BAD_ARGUMENT;
    job->ops = r->ops;
    job->chunk = dllm_ceil_div(PER_ITEM, job->width);
    dllm_parallel(job->rows * job->width < SMALL ? 1 : threads, dllm_ceil_div(job->rows, job->chunk), body,
                  job);
    return DLLM_OK;
}

static void rms_norm(void *arg, int64_t item, int worker) {
    const range_job *j = arg;
    int64_t begin = item * j->chunk;
    (void)worker;
    j->ops->rms_norm(j->x, j->width, j->y, j->eps, j->width, begin, range_end(j, begin), j->out, j->width);
}

int dllm_rms_norm(int row, int threads, const float *x, const float *weight, float eps, int64_t rows,
                  int64_t width, float *y) {
    range_job job = {.rows = rows, .width = width, .x = x, .y = weight, .eps = eps, .out = y};
    return run(row, threads, &job, rms_norm);
}

static void rope(void *arg, int64_t item, int worker) {
    const range_job *j = arg;
    int64_t begin = item * j->chunk;
    (void)worker;
    j->ops->rope(j->out, j->width, j->heads, j->head_dim, j->cos, j->sin, j->ids, begin, range_end(j, begin));
}

int dllm_rope(int row, int threads, float *x, int64_t heads, int64_t head_dim, const float *cos,
              const float *sin, const int64_t *positions, int64_t rows) {
    range_job job = {.rows = rows,
                     .width = heads * head_dim,
                     .out = x,
                     .heads = heads,
                     .head_dim = head_dim,
                     .cos = cos,
                     .sin = sin,
                     .ids = positions};
    return run(row, threads, &job, rope);
}

static void swiglu(void *arg, int64_t item, int worker) {
    const range_job *j = arg;
    int64_t begin = item * j->chunk;
    (void)worker;
    j->ops->swiglu(j->x, 2 * j->width, j->width, begin, range_end(j, begin), j->out, j->width);
}

int dllm_swiglu(int row, int threads, const float *gate_up, int64_t rows, int64_t width, float *y) {
    range_job job = {.rows = rows, .width = width, .x = gate_up, .out = y};
    return run(row, threads, &job, swiglu);
}

static void add(void *arg, int64_t item, int worker) {
    const range_job *j = arg;
    int64_t begin = item * j->chunk;
    (void)worker;
    j->ops->add(j->out, j->x, begin, range_end(j, begin));
}

int dllm_add(int row, int threads, float *x, const float *y, int64_t count) {
    range_job job = {.rows = count, .width = 1, .x = y, .out = x};
    return run(row, threads, &job, add);
}

static void embed(void *arg, int64_t item, int worker) {
    const range_job *j = arg;
    int64_t begin = item * j->chunk;
    (void)worker;
    j->ops->embed(j->table, j->stored, j->width, j->ids, begin, range_end(j, begin), j->out);
}

int dllm_embed(int row, int threads, const void *table, int stored, int64_t width, const int64_t *ids,
               int64_t rows, float *y) {
    range_job job = {.rows = rows, .width = width, .table = table, .stored = stored, .ids = ids, .out = y};
    return run(row, threads, &job, embed);
}

/* ---- attention ---- */

typedef struct {
    const dllm_ops *ops;
    const dllm_attention *a;
    char *scratch; /* [threads][stride] */
    int64_t stride;
} attention_job;

static void attend(void *arg, int64_t item, int worker) {
    const attention_job *j = arg;
    j->ops->attention_item(j->a, item, j->scratch + worker * j->stride);
}

int64_t dllm_attention_scratch(int row, int threads, int64_t head_dim) {
    const dllm_row *r = dllm_get_row(row);
    return r ? threads * dllm_round_up(r->ops->attention_scratch(head_dim), 64) : 0;
}

void dllm_attend(const dllm_ops *ops, int threads, const dllm_attention *a, void *scratch) {
    attention_job job = {ops, a, scratch, dllm_round_up(ops->attention_scratch(a->head_dim), 64)};
    int64_t rows = a->q_offsets[a->sequences], keys = a->kv_offsets[a->sequences];
    int64_t work = rows * keys / a->sequences * a->heads * a->head_dim;
    dllm_parallel(work < 4 * SMALL ? 1 : threads, ops->attention_items(a), attend, &job);
}

int dllm_attention_run(int row, int threads, const float *q, const float *k, const float *v, int64_t heads,
                       int64_t kv_heads, int64_t head_dim, const dllm_rows *rows, float *y, void *scratch) {
    const dllm_row *r = dllm_get_row(row);
    if (!r || threads < 1 || heads < 1 || kv_heads < 1 || heads % kv_heads || head_dim < 1 ||
        rows->sequences < 1)
        return DLLM_BAD_ARGUMENT;
    const int64_t width = heads * head_dim;
    dllm_attention a = {.q = q,
                        .q_stride = width,
                        .k = k,
                        .v = v,
                        .slot_stride = kv_heads * head_dim,
                        .head_stride = head_dim,
                        .out = y,
                        .out_stride = width,
                        .q_offsets = rows->q_offsets,
                        .kv_offsets = rows->kv_offsets,
                        .visible = rows->visible,
                        .sequences = rows->sequences,
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim};
    dllm_attend(r->ops, threads, &a, scratch);
    return DLLM_OK;
}
