/* Packing of weights into panels, its inverse, and their sizes. Runs once, at load time. */
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "row.h"

static const dllm_gemm *kernel_of(const dllm_linear *w) {
    const dllm_row *row = dllm_get_row(w->row);
    if (!row || w->scheme < DLLM_F32 || w->scheme > DLLM_QB8W || w->n < 1 || w->k < 1)
        return NULL;
    return row->gemm[w->scheme];
}

static int64_t group_of(const dllm_linear *w) {
    return w->scheme == DLLM_QB8W ? DLLM_GROUP : w->k;
}

static int64_t padded_k(const dllm_linear *w, const dllm_gemm *g) {
    return dllm_round_up(w->k, g->kr);
}

static int64_t padded_n(const dllm_linear *w, const dllm_gemm *g) {
    return dllm_round_up(w->n, g->nr);
}

int64_t dllm_groups(const dllm_linear *w) {
    return w->scheme == DLLM_F32 ? 0 : dllm_ceil_div(w->k, group_of(w));
}

int64_t dllm_weight_bytes(const dllm_linear *w) {
    const dllm_gemm *g = kernel_of(w);
    return g ? padded_n(w, g) * padded_k(w, g) * g->b_bytes : 0;
}

int64_t dllm_scale_bytes(const dllm_linear *w) {
    const dllm_gemm *g = kernel_of(w);
    return g ? padded_n(w, g) * dllm_groups(w) * (int64_t)sizeof(float) : 0;
}

int64_t dllm_bias_bytes(const dllm_linear *w) {
    const dllm_gemm *g = kernel_of(w);
    return g ? padded_n(w, g) * (int64_t)sizeof(float) : 0;
}

int dllm_panel_shape(const dllm_linear *w, dllm_panels *shape) {
    const dllm_gemm *g = kernel_of(w);
    if (!g)
        return DLLM_BAD_ARGUMENT;
    *shape = (dllm_panels){g->nr, g->kr, w->scheme == DLLM_F32 ? 0 : g->zero_point};
    return DLLM_OK;
}

typedef struct {
    const dllm_linear *w;
    const dllm_gemm *g;
    const dllm_ops *ops;
    const float *rows;
    int64_t first, last; /* outputs [first, last) are given */
    int8_t *codes;       /* [threads][padded k] */
} pack_job;

/* Output column c of a panel: its scales and codes, or zeros beyond n (values is NULL). */
static void pack_int8(const pack_job *job, int64_t panel, int64_t c, const float *values, int8_t *codes) {
    const dllm_linear *w = job->w;
    const dllm_gemm *g = job->g;
    int64_t k = w->k, group = group_of(w), groups = dllm_groups(w), depth = padded_k(w, g);
    memset(codes, 0, (size_t)depth);
    for (int64_t i = 0; i < groups; i++) {
        float *scale = w->scale + (panel * groups + i) * g->nr + c;
        int64_t width = i * group + group < k ? group : k - i * group;
        *scale = 0.0f;
        if (values)
            job->ops->quantise_rows(values + i * group, width, width, 0, 1, codes + i * group, width, scale);
    }
    uint8_t *to = (uint8_t *)w->weight + (panel * depth * g->nr) + c * g->kr;
    for (int64_t at = 0; at < depth; at += g->kr, to += (int64_t)g->nr * g->kr)
        for (int j = 0; j < g->kr; j++)
            to[j] = (uint8_t)(codes[at + j] + g->zero_point);
}

static void pack_f32(const pack_job *job, int64_t panel, int64_t c, const float *values) {
    const dllm_gemm *g = job->g;
    float *to = (float *)job->w->weight + panel * job->w->k * g->nr + c;
    for (int64_t at = 0; at < job->w->k; at++)
        to[at * g->nr] = values ? values[at] : 0.0f;
}

static void pack_panel(void *arg, int64_t item, int worker) {
    const pack_job *job = arg;
    const dllm_linear *w = job->w;
    int64_t nr = job->g->nr, panel = job->first / nr + item;
    int64_t from = job->first > panel * nr ? job->first : panel * nr;
    int64_t to = job->last == w->n ? panel * nr + nr : job->last;
    to = to < panel * nr + nr ? to : panel * nr + nr;
    for (int64_t out = from; out < to; out++) {
        const float *values = out < job->last ? job->rows + (out - job->first) * w->k : NULL;
        if (w->scheme == DLLM_F32)
            pack_f32(job, panel, out - panel * nr, values);
        else
            pack_int8(job, panel, out - panel * nr, values, job->codes + worker * padded_k(w, job->g));
    }
}

int dllm_pack(int threads, dllm_linear *w, const float *rows, int64_t first, int64_t count) {
    const dllm_gemm *g = kernel_of(w);
    if (!g || threads < 1 || threads > DLLM_MAX_THREADS || first < 0 || count < 1 || first + count > w->n)
        return DLLM_BAD_ARGUMENT;
    int8_t *codes = malloc((size_t)(threads * padded_k(w, g)));
    if (!codes)
        return DLLM_NO_MEMORY;
    pack_job job = {w, g, dllm_get_row(w->row)->ops, rows, first, first + count, codes};
    int64_t panels = (first + count - 1) / g->nr - first / g->nr + 1;
    dllm_parallel(threads, panels, pack_panel, &job);
    free(codes);
    return DLLM_OK;
}

int dllm_unpack(const dllm_linear *w, int8_t *codes, float *scales, float *values) {
    const dllm_gemm *g = kernel_of(w);
    if (!g)
        return DLLM_BAD_ARGUMENT;
    int64_t depth = padded_k(w, g), groups = dllm_groups(w);
    for (int64_t out = 0; out < w->n; out++) {
        int64_t panel = out / g->nr, c = out % g->nr;
        for (int64_t i = 0; i < groups; i++)
            scales[out * groups + i] = w->scale[(panel * groups + i) * g->nr + c];
        for (int64_t k = 0; k < w->k; k++) {
            int64_t at = panel * depth * g->nr + (k / g->kr * g->nr + c) * g->kr + k % g->kr;
            if (w->scheme == DLLM_F32)
                values[out * w->k + k] = ((const float *)w->weight)[at];
            else
                codes[out * w->k + k] = (int8_t)(((const uint8_t *)w->weight)[at] - g->zero_point);
        }
    }
    return DLLM_OK;
}
