/* The input of a linear layer: rows -> (norm or activation) -> codes -> tiles for the GEMM.
 *
 * A tile is made by one thread from beginning to end, in memory of its own, and the product begins with the
 * tiles that are there: no thread waits for all of them, and what one core has written another reads once. */
#include <sched.h>
#include <string.h>

#include "linear.h"
#include "pool.h"

enum {
    ROW_ALIGN = 64, /* `start` functions read whole vectors */
    SPINS = 10000,  /* pauses before a waiting thread offers its core to others */
};

int64_t dllm_packed_plan(dllm_packed *p, const dllm_linear *w, int threads, int64_t rows,
                         const dllm_input *input, void *scratch) {
    return dllm_packed_plan_for(p, dllm_kernel(w), w, threads, rows, input, scratch);
}

static int64_t element_bytes(const dllm_linear *w) {
    return dllm_has_codes(w) ? 1 : w->scheme == DLLM_BF16 ? sizeof(uint16_t) : sizeof(float);
}

int64_t dllm_packed_plan_for(dllm_packed *p, const dllm_gemm *g, const dllm_linear *w, int threads,
                             int64_t rows, const dllm_input *input, void *scratch) {
    int64_t used = 0, k = w->k, tiles = dllm_ceil_div(rows, g->mr), longest = dllm_ceil_div(rows, tiles);
    *p = (dllm_packed){.w = w, .row = dllm_get_row(w->row), .g = g, .threads = threads, .rows = rows};
    p->tiles = tiles;
    p->steps = dllm_ceil_div(k, g->kr);
    p->group = dllm_group(w);
    p->groups = dllm_ceil_div(k, p->group);
    /* One line more than k asks for: rows a power of two apart would share their cache sets. */
    p->ld = dllm_round_up(k, ROW_ALIGN) + ROW_ALIGN;
    p->line = dllm_carve(scratch, &used, threads * k * (int64_t)sizeof(float));
    p->strip = dllm_round_up(longest * p->ld * element_bytes(w), 64);
    p->strips = dllm_carve(scratch, &used, threads * p->strip);
    p->ready = dllm_carve(scratch, &used, tiles * (int64_t)sizeof *p->ready);
    if (dllm_has_codes(w)) {
        p->scale = dllm_carve(scratch, &used, rows * (int64_t)sizeof(float));
        p->row_start = dllm_carve(scratch, &used, threads * longest * p->groups * (int64_t)sizeof(int32_t));
        p->start = dllm_carve(scratch, &used, rows * p->groups * (int64_t)sizeof(int32_t));
    }
    p->a = dllm_carve(scratch, &used, rows * p->steps * g->kr * g->a_bytes);
    if (input)
        p->input = *input;
    for (int64_t i = 0; scratch && i < tiles; i++)
        atomic_init(&p->ready[i], 0);
    return used;
}

int dllm_tile_rows(const dllm_packed *p, int64_t tile, int64_t *first) {
    int64_t size = p->rows / p->tiles, longer = p->rows % p->tiles;
    *first = tile * size + (tile < longer ? tile : longer);
    return (int)(size + (tile < longer));
}

/* The normed or activated row r, in `to`; or where it lies if it is taken as it is. */
static const float *compute_row(const dllm_packed *p, int64_t r, float *to) {
    const dllm_input *in = &p->input;
    int64_t k = p->w->k;
    if (in->kind == DLLM_PLAIN)
        return in->x + r * k;
    if (in->kind == DLLM_NORMED)
        p->row->ops->rms_norm(in->x + r * k, k, in->norm, in->eps, k, 0, 1, to, k);
    else
        p->row->ops->swiglu(in->x + r * 2 * k, 2 * k, k, 0, 1, to, k);
    return to;
}

static void make_halves(const dllm_packed *p, int64_t first, int rows, uint16_t *halves, float *line) {
    int64_t k = p->w->k;
    for (int r = 0; r < rows; r++, halves += p->ld) {
        p->row->ops->round_bf16(compute_row(p, first + r, line), 0, k, halves);
        memset(halves + k, 0, (size_t)(p->ld - k) * sizeof *halves);
    }
}

static void make_codes(const dllm_packed *p, int64_t first, int rows, int8_t *codes, float *line) {
    const dllm_input *in = &p->input;
    const dllm_ops *ops = p->row->ops;
    int64_t k = p->w->k;
    float *scale = p->scale + first;
    if (in->kind == DLLM_NORMED)
        ops->rms_norm_quantise(in->x + first * k, k, in->norm, in->eps, k, 0, rows, codes, p->ld, scale,
                               line);
    else if (in->kind == DLLM_SWIGLU)
        ops->swiglu_quantise(in->x + first * 2 * k, 2 * k, k, 0, rows, codes, p->ld, scale, line);
    else
        ops->quantise_rows(in->x + first * k, k, k, 0, rows, codes, p->ld, scale);
    for (int r = 0; r < rows; r++)
        memset(codes + r * p->ld + k, 0, (size_t)(p->ld - k));
}

/* What the integer sums of a tile start at, [groups][rows]. */
static void make_starts(const dllm_packed *p, int64_t first, int rows, const int8_t *codes, int worker) {
    int64_t groups = p->groups;
    int32_t *of_row = p->row_start + worker * dllm_ceil_div(p->rows, p->tiles) * groups;
    for (int r = 0; r < rows; r++)
        p->g->start(codes + r * p->ld, p->w->k, p->group, of_row + r * groups);
    for (int64_t i = 0; i < groups; i++)
        for (int r = 0; r < rows; r++)
            p->start[first * groups + i * rows + r] = of_row[r * groups + i];
}

static void make_tile(const dllm_packed *p, int64_t tile, int worker) {
    int64_t first, k = p->w->k;
    int rows = dllm_tile_rows(p, tile, &first);
    void *strip = p->strips + worker * p->strip;
    float *line = p->line + worker * k;
    void *a = (char *)p->a + first * p->steps * p->g->kr * p->g->a_bytes;
    if (dllm_has_codes(p->w)) {
        make_codes(p, first, rows, strip, line);
        if (p->g->start)
            make_starts(p, first, rows, strip, worker);
    } else if (p->w->scheme == DLLM_BF16) {
        make_halves(p, first, rows, strip, line);
    } else if (p->input.kind == DLLM_PLAIN) {
        p->g->pack_a(p->input.x + first * k, k, rows, p->steps, a);
        return;
    } else {
        for (int r = 0; r < rows; r++)
            compute_row(p, first + r, (float *)strip + r * p->ld);
    }
    p->g->pack_a(strip, p->ld, rows, p->steps, a);
}

void dllm_packed_fill(dllm_packed *p, int worker) {
    int64_t tile;
    while ((tile = atomic_fetch_add(&p->next_tile, 1)) < p->tiles) {
        make_tile(p, tile, worker);
        atomic_store_explicit(&p->ready[tile], 1, memory_order_release);
    }
}

void dllm_packed_wait(const dllm_packed *p, int64_t tile) {
    for (int spins = 0; !atomic_load_explicit(&p->ready[tile], memory_order_acquire); spins++) {
        if (spins < SPINS)
            DLLM_PAUSE();
        else
            sched_yield();
    }
}
