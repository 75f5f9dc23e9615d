/* Packing of weights into panels, its inverse, and their sizes. Runs once, at load time. */
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "row.h"

const dllm_gemm *dllm_kernel(const dllm_linear *w) {
    const dllm_row *row = dllm_get_row(w->row);
    if (!row || w->scheme < 0 || w->scheme >= DLLM_SCHEMES || w->n < 1 || w->k < 1)
        return NULL;
    const dllm_gemm *g = row->gemm[w->scheme];
    while (g && g->supported && !g->supported())
        g = g->fallback;
    return g;
}

int64_t dllm_group(const dllm_linear *w) {
    return w->scheme == DLLM_QB8W || w->scheme == DLLM_QB4W ? DLLM_GROUP : w->k;
}

static int64_t padded_k(const dllm_linear *w, const dllm_gemm *g) {
    return dllm_round_up(w->k, g->kr);
}

static int64_t padded_n(const dllm_linear *w, const dllm_gemm *g) {
    return dllm_round_up(w->n, g->nr);
}

int64_t dllm_panel_bytes(const dllm_linear *w, const dllm_gemm *g) {
    return padded_k(w, g) * g->nr * g->b_bits / 8;
}

int64_t dllm_groups(const dllm_linear *w) {
    return !dllm_has_codes(w) ? 0 : dllm_ceil_div(w->k, dllm_group(w));
}

int64_t dllm_weight_bytes(const dllm_linear *w) {
    const dllm_gemm *g = dllm_kernel(w);
    return g ? dllm_ceil_div(w->n, g->nr) * dllm_panel_bytes(w, g) : 0;
}

int64_t dllm_scale_bytes(const dllm_linear *w) {
    const dllm_gemm *g = dllm_kernel(w);
    return g ? padded_n(w, g) * dllm_groups(w) * (int64_t)sizeof(float) : 0;
}

int64_t dllm_bias_bytes(const dllm_linear *w) {
    const dllm_gemm *g = dllm_kernel(w);
    return g ? padded_n(w, g) * (int64_t)sizeof(float) : 0;
}

int dllm_panel_shape(const dllm_linear *w, dllm_panels *shape) {
    const dllm_gemm *g = dllm_kernel(w);
    if (!g)
        return DLLM_BAD_ARGUMENT;
    *shape = (dllm_panels){g->nr, g->kr, g->zero_point};
    return DLLM_OK;
}

typedef struct {
    const dllm_linear *w;
    const dllm_gemm *g;
    const dllm_ops *ops;
    const float *rows;
    int64_t first, last; /* outputs [first, last) are given */
    char *lines;         /* [threads][padded k] codes or bfloat16 */
} pack_job;

/* Output column c of a panel: its scales and codes, or zeros beyond n (values is NULL). */
static void pack_codes(const pack_job *job, int64_t panel, int64_t c, const float *values, int8_t *codes) {
    const dllm_linear *w = job->w;
    const dllm_gemm *g = job->g;
    int64_t k = w->k, group = dllm_group(w), groups = dllm_groups(w), depth = padded_k(w, g);
    memset(codes, 0, (size_t)depth);
    for (int64_t i = 0; i < groups; i++) {
        float *scale = w->scale + (panel * groups + i) * g->nr + c;
        int64_t width = i * group + group < k ? group : k - i * group;
        *scale = 0.0f;
        if (values && g->b_bits == 4)
            job->ops->quantise_rows_4bit(values + i * group, width, width, 0, 1, codes + i * group, width,
                                         scale);
        else if (values)
            job->ops->quantise_rows(values + i * group, width, width, 0, 1, codes + i * group, width, scale);
    }
    int stored = g->kr * g->b_bits / 8; /* bytes of a step */
    uint8_t *to = (uint8_t *)w->weight + panel * dllm_panel_bytes(w, g) + c * stored;
    for (int64_t at = 0; at < depth; at += g->kr, to += (int64_t)g->nr * stored)
        for (int j = 0; j < stored; j++) {
            to[j] = (uint8_t)(codes[at + j] + g->zero_point);
            if (g->b_bits == 4)
                to[j] |= (uint8_t)((codes[at + stored + j] + g->zero_point) << 4);
        }
}

static void pack_bf16(const pack_job *job, int64_t panel, int64_t c, const float *values, uint16_t *line) {
    const dllm_gemm *g = job->g;
    int64_t depth = padded_k(job->w, g);
    uint16_t *to = (uint16_t *)job->w->weight + panel * depth * g->nr + c * g->kr;
    memset(line, 0, (size_t)depth * sizeof *line);
    if (values)
        job->ops->round_bf16(values, 0, job->w->k, line);
    for (int64_t at = 0; at < depth; at += g->kr, to += (int64_t)g->nr * g->kr)
        memcpy(to, line + at, (size_t)g->kr * sizeof *line);
}

static void pack_f32(const pack_job *job, int64_t panel, int64_t c, const float *values) {
    const dllm_gemm *g = job->g;
    float *to = (float *)job->w->weight + panel * job->w->k * g->nr + c;
    for (int64_t at = 0; at < job->w->k; at++)
        to[at * g->nr] = values ? values[at] : 0.0f;
}

static int64_t line_bytes(const dllm_linear *w, const dllm_gemm *g) {
    return dllm_round_up(padded_k(w, g) * (int64_t)sizeof(uint16_t), 64);
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
        char *line = job->lines + worker * line_bytes(w, job->g);
        if (w->scheme == DLLM_F32)
            pack_f32(job, panel, out - panel * nr, values);
        else if (w->scheme == DLLM_BF16)
            pack_bf16(job, panel, out - panel * nr, values, (uint16_t *)line);
        else
            pack_codes(job, panel, out - panel * nr, values, (int8_t *)line);
    }
}

int dllm_pack(int threads, dllm_linear *w, const float *rows, int64_t first, int64_t count) {
    const dllm_gemm *g = dllm_kernel(w);
    if (!g || threads < 1 || threads > DLLM_MAX_THREADS || first < 0 || count < 1 || first + count > w->n)
        return DLLM_BAD_ARGUMENT;
    char *lines = malloc((size_t)(threads * line_bytes(w, g)));
    if (!lines)
        return DLLM_NO_MEMORY;
    pack_job job = {w, g, dllm_get_row(w->row)->ops, rows, first, first + count, lines};
    int64_t panels = (first + count - 1) / g->nr - first / g->nr + 1;
    dllm_parallel(threads, panels, pack_panel, &job);
    free(lines);
    return DLLM_OK;
}

/* Code k of output column c of a panel. */
static int8_t code_at(const dllm_gemm *g, const uint8_t *panel, int64_t c, int64_t k) {
    int stored = g->kr * g->b_bits / 8, at = (int)(k % g->kr);
    int byte = panel[(k / g->kr * g->nr + c) * stored + at % stored];
    if (g->b_bits == 4)
        byte = at < stored ? byte & 15 : byte >> 4;
    return (int8_t)(byte - g->zero_point);
}

int dllm_unpack(const dllm_linear *w, int8_t *codes, float *scales, float *values) {
    const dllm_gemm *g = dllm_kernel(w);
    if (!g)
        return DLLM_BAD_ARGUMENT;
    int64_t groups = dllm_groups(w);
    for (int64_t out = 0; out < w->n; out++) {
        int64_t panel = out / g->nr, c = out % g->nr;
        const void *at = (const char *)w->weight + panel * dllm_panel_bytes(w, g);
        for (int64_t i = 0; i < groups; i++)
            scales[out * groups + i] = w->scale[(panel * groups + i) * g->nr + c];
        for (int64_t k = 0; k < w->k; k++) {
            int64_t i = (k / g->kr * g->nr + c) * g->kr + k % g->kr;
            if (w->scheme == DLLM_F32)
                values[out * w->k + k] = ((const float *)at)[i];
            else if (w->scheme == DLLM_BF16)
                values[out * w->k + k] = dllm_widen(((const uint16_t *)at)[i]);
            else
                codes[out * w->k + k] = code_at(g, at, c, k);
        }
    }
    return DLLM_OK;
}
