/* The linear layer: rows -> (norm or activation) -> codes -> tiles -> GEMM, threaded over panels.
 *
 * Work is never split along k, so no result depends on the thread count. */
#include <string.h>

#include "linear.h"
#include "pool.h"

enum {
    CODES_ALIGN = 64,     /* `start` functions read whole vectors */
    SMALL_ROWS = 1 << 16, /* activations below which another thread costs more than it saves */
    SMALL_GEMM = 1 << 21, /* multiplications, likewise */
    FEW_ROWS = 4,         /* up to here memory is the limit */
    TAIL = 2,             /* panels a thread that are cut, ... */
    BLOCKS = 8,           /* ... into so many items at most */
    MAX_MR = 16,          /* the largest tile of rows by panels that run_pair has room for */
    MAX_NR = 64,
    STEPS_PER_ITEM = 1024, /* interleaving: steps of one tile per work item */
};

static _Atomic(const char *) last_kernel = "";

const char *dllm_last_kernel(void) {
    return atomic_load(&last_kernel);
}

/* ---- scratch ---- */

int64_t dllm_packed_plan(dllm_packed *p, const dllm_linear *w, int threads, int64_t rows, void *scratch) {
    return dllm_packed_plan_for(p, dllm_kernel(w), w, threads, rows, scratch);
}

int64_t dllm_packed_plan_for(dllm_packed *p, const dllm_gemm *g, const dllm_linear *w, int threads,
                             int64_t rows, void *scratch) {
    int64_t used = 0, k = w->k;
    *p = (dllm_packed){.w = w, .row = dllm_get_row(w->row), .g = g, .threads = threads, .rows = rows};
    p->tiles = dllm_ceil_div(rows, g->mr);
    p->steps = dllm_ceil_div(k, g->kr);
    p->group = dllm_group(w);
    p->groups = dllm_ceil_div(k, p->group);
    /* One line more than k asks for: rows a power of two apart would share their cache sets. */
    p->ld = w->scheme == DLLM_F32 ? k : dllm_round_up(k, CODES_ALIGN) + CODES_ALIGN;
    if (w->scheme == DLLM_F32)
        p->values = dllm_carve(scratch, &used, rows * k * (int64_t)sizeof(float));
    else
        p->line = dllm_carve(scratch, &used, threads * k * (int64_t)sizeof(float));
    if (w->scheme == DLLM_BF16)
        p->halves = dllm_carve(scratch, &used, rows * p->ld * (int64_t)sizeof(uint16_t));
    if (dllm_has_codes(w)) {
        p->codes = dllm_carve(scratch, &used, rows * p->ld);
        p->scale = dllm_carve(scratch, &used, rows * (int64_t)sizeof(float));
        p->row_start = dllm_carve(scratch, &used, rows * p->groups * (int64_t)sizeof(int32_t));
        p->start = dllm_carve(scratch, &used, rows * p->groups * (int64_t)sizeof(int32_t));
    }
    p->a = dllm_carve(scratch, &used, rows * p->steps * g->kr * g->a_bytes);
    return used;
}

/* ---- activations ---- */

typedef struct {
    dllm_packed *p;
    const dllm_input *in;
} fill_job;

/* The normed or activated row r, in `to`. */
static void compute_row(const fill_job *job, int64_t r, float *to) {
    const dllm_input *in = job->in;
    const dllm_ops *ops = job->p->row->ops;
    int64_t k = job->p->w->k;
    if (in->kind == DLLM_NORMED)
        ops->rms_norm(in->x + r * k, k, in->norm, in->eps, k, 0, 1, to, k);
    else
        ops->swiglu(in->x + r * 2 * k, 2 * k, k, 0, 1, to, k);
}

static void make_values(void *arg, int64_t r, int worker) {
    const fill_job *job = arg;
    (void)worker;
    compute_row(job, r, job->p->values + r * job->p->ld);
}

static void make_halves(void *arg, int64_t r, int worker) {
    const fill_job *job = arg;
    const dllm_packed *p = job->p;
    int64_t k = p->w->k;
    const float *x = job->in->x + r * k;
    uint16_t *halves = p->halves + r * p->ld;
    if (job->in->kind != DLLM_PLAIN) {
        compute_row(job, r, p->line + worker * k);
        x = p->line + worker * k;
    }
    p->row->ops->round_bf16(x, 0, k, halves);
    memset(halves + k, 0, (size_t)(p->ld - k) * sizeof *halves);
}

static void make_codes(void *arg, int64_t r, int worker) {
    const fill_job *job = arg;
    const dllm_packed *p = job->p;
    const dllm_input *in = job->in;
    const dllm_ops *ops = p->row->ops;
    int64_t k = p->w->k;
    float *line = p->line + worker * k;
    if (in->kind == DLLM_NORMED)
        ops->rms_norm_quantise(in->x, k, in->norm, in->eps, k, r, r + 1, p->codes, p->ld, p->scale, line);
    else if (in->kind == DLLM_SWIGLU)
        ops->swiglu_quantise(in->x, 2 * k, k, r, r + 1, p->codes, p->ld, p->scale, line);
    else
        ops->quantise_rows(in->x, k, k, r, r + 1, p->codes, p->ld, p->scale);
    int8_t *codes = p->codes + r * p->ld;
    memset(codes + k, 0, (size_t)(p->ld - k));
    if (p->g->start)
        p->g->start(codes, k, p->group, p->row_start + r * p->groups);
}

/* Tile t covers rows *first .. *first + mr - 1; sizes differ by at most one. */
static int tile_rows(const dllm_packed *p, int64_t t, int64_t *first) {
    int64_t size = p->rows / p->tiles, longer = p->rows % p->tiles;
    *first = t * size + (t < longer ? t : longer);
    return (int)(size + (t < longer));
}

static int64_t items_per_tile(const dllm_packed *p) {
    return dllm_ceil_div(p->steps, STEPS_PER_ITEM);
}

static void interleave(void *arg, int64_t item, int worker) {
    const fill_job *job = arg;
    const dllm_packed *p = job->p;
    const dllm_gemm *g = p->g;
    int64_t first, tile = item / items_per_tile(p), step = item % items_per_tile(p) * STEPS_PER_ITEM;
    int64_t steps = p->steps - step < STEPS_PER_ITEM ? p->steps - step : STEPS_PER_ITEM;
    int mr = tile_rows(p, tile, &first);
    (void)worker;
    char *a = (char *)p->a + (first * p->steps + step * mr) * g->kr * g->a_bytes;
    int64_t at = first * p->ld + step * g->kr;
    if (p->w->scheme == DLLM_F32)
        g->pack_a((job->in->kind == DLLM_PLAIN ? job->in->x : p->values) + at, p->ld, mr, steps, a);
    else if (p->w->scheme == DLLM_BF16)
        g->pack_a(p->halves + at, p->ld, mr, steps, a);
    else
        g->pack_a(p->codes + at, p->ld, mr, steps, a);
    if (step == 0 && g->start)
        for (int64_t i = 0; i < p->groups; i++)
            for (int r = 0; r < mr; r++)
                p->start[first * p->groups + i * mr + r] = p->row_start[(first + r) * p->groups + i];
}

void dllm_packed_fill(dllm_packed *p, const dllm_input *input) {
    fill_job job = {p, input};
    int threads = p->rows * p->w->k < SMALL_ROWS ? 1 : p->threads;
    if (dllm_has_codes(p->w))
        dllm_parallel(threads, p->rows, make_codes, &job);
    else if (p->w->scheme == DLLM_BF16)
        dllm_parallel(threads, p->rows, make_halves, &job);
    else if (input->kind != DLLM_PLAIN)
        dllm_parallel(threads, p->rows, make_values, &job);
    dllm_parallel(threads, p->tiles * items_per_tile(p), interleave, &job);
}

/* ---- GEMM ---- */

typedef struct {
    const dllm_packed *p;
    float *y;
    const float *residual;
    int32_t *acc;
    int64_t ldc, first_panel, first_column; /* y starts at this column of the layer */
    int64_t panels, whole;                  /* of which the first `whole` are one item each, ... */
    int64_t blocks;                         /* ... and the others so many, each some of the tiles */
    int64_t half;                           /* panels of gates, before those of ups; 0: no activation */
    _Atomic int64_t next;
} gemm_job;

static const char *panel_at(const dllm_packed *p, int64_t panel) {
    return (const char *)p->w->weight + panel * dllm_panel_bytes(p->w, p->g);
}

/* What the tiles of one panel have in common; steps touch `touch` bytes each of what comes next. */
static dllm_tile new_tile(const gemm_job *job, int64_t panel, int64_t touch) {
    const dllm_packed *p = job->p;
    const dllm_gemm *g = p->g;
    const dllm_linear *w = p->w;
    int64_t column = panel * g->nr;
    return (dllm_tile){.b = panel_at(p, panel),
                       .k_steps = p->steps,
                       .group_steps = dllm_ceil_div(p->group, g->kr),
                       .b_scale = w->scale ? w->scale + column * p->groups : NULL,
                       .bias = w->bias ? w->bias + column : NULL,
                       .ldc = job->ldc,
                       .acc_group = p->rows * job->ldc,
                       .cols = (int)(w->n - column < g->nr ? w->n - column : g->nr),
                       .prefetch_step = (int)touch};
}

/* Where tile i of the rows reads and writes; `at` is the column of y. Gives the tile's first row. */
static int64_t place_tile(const gemm_job *job, dllm_tile *t, int64_t i, int64_t at) {
    const dllm_packed *p = job->p;
    int64_t first;
    t->mr = tile_rows(p, i, &first);
    t->a = (const char *)p->a + first * p->steps * p->g->kr * p->g->a_bytes;
    t->a_start = p->start ? p->start + first * p->groups : NULL;
    t->a_scale = p->scale ? p->scale + first : NULL;
    t->c = job->y ? job->y + first * job->ldc + at : NULL;
    t->residual = job->residual ? job->residual + first * job->ldc + at : NULL;
    t->acc = job->acc ? job->acc + first * job->ldc + at : NULL;
    return first;
}

/* Bytes of the next panel that each step touches, so that `tiles` tiles together touch every line of it. None
 * for few rows, whose reading is one fast stream that the processor prefetches better by itself (measured at
 * one row: 95 % of the memory bandwidth against 70 %); four-bit weights are a slower stream. */
static int64_t touched(const dllm_packed *p, int64_t tiles) {
    const dllm_gemm *g = p->g;
    int64_t few = g->b_bits < 8 ? FEW_ROWS / 2 : FEW_ROWS;
    return p->rows <= few ? 0 : dllm_ceil_div(g->kr * g->nr * g->b_bits / 8, tiles);
}

/* Tiles [from, to) of one panel; their steps touch panel `ahead`. */
static const char *run_panel(const gemm_job *job, int64_t panel, int64_t from, int64_t to, int64_t ahead) {
    const dllm_packed *p = job->p;
    const dllm_gemm *g = p->g;
    int64_t touch = touched(p, to - from);
    dllm_tile t = new_tile(job, panel, touch);
    for (int64_t i = from; i < to; i++) {
        place_tile(job, &t, i, panel * g->nr - job->first_column);
        t.prefetch = panel_at(p, touch ? ahead : panel) + (i - from) * p->steps * touch;
        g->gemm(&t);
    }
    return t.kernel;
}

/* The same for panel `panel` of the gates and that of the ups, tile by tile: y gets silu(gate) * up at once,
 * and the activations of a tile are read while they are in cache. */
static const char *run_pair(const gemm_job *job, int64_t panel, int64_t from, int64_t to, int64_t ahead) {
    const dllm_packed *p = job->p;
    const dllm_gemm *g = p->g;
    float sums[MAX_MR * 2 * MAX_NR] __attribute__((aligned(64)));
    int64_t touch = touched(p, to - from);
    dllm_tile t[] = {new_tile(job, panel, touch), new_tile(job, panel + job->half, touch)};
    for (int64_t i = from; i < to; i++) {
        int64_t first = 0, columns = 2 * g->nr;
        for (int h = 0; h < 2; h++) {
            first = place_tile(job, &t[h], i, 0);
            t[h].c = sums + h * g->nr;
            t[h].ldc = columns;
            t[h].prefetch =
                panel_at(p, (touch ? ahead : panel) + h * job->half) + (i - from) * p->steps * touch;
            g->gemm(&t[h]);
        }
        p->row->ops->swiglu(sums, columns, g->nr, 0, t[0].mr, job->y + first * job->ldc + panel * g->nr,
                            job->ldc);
    }
    return t[0].kernel;
}

static int64_t item_count(const gemm_job *job) {
    return job->whole + (job->panels - job->whole) * job->blocks;
}

static int64_t panel_of(const gemm_job *job, int64_t item) {
    int64_t behind = item - job->whole;
    return job->first_panel + (behind < 0 ? item : job->whole + behind / job->blocks);
}

static void run_item(const gemm_job *job, int64_t item, int64_t ahead) {
    int64_t tiles = job->p->tiles, behind = item - job->whole, from = 0, to = tiles;
    if (behind >= 0) {
        from = tiles * (behind % job->blocks) / job->blocks;
        to = tiles * (behind % job->blocks + 1) / job->blocks;
    }
    const char *kernel =
        (job->half ? run_pair : run_panel)(job, panel_of(job, item), from, to, panel_of(job, ahead));
    atomic_store_explicit(&last_kernel, kernel, memory_order_relaxed);
}

/* One call per thread. Items are claimed one ahead, so that a thread can prefetch what it will need; not near
 * the end, where the claim could keep the other threads idle. */
static void gemm_worker(void *arg, int64_t unused, int worker) {
    gemm_job *job = arg;
    int64_t items = item_count(job), guard = items - 2 * job->p->threads;
    int64_t item = atomic_fetch_add(&job->next, 1);
    (void)unused, (void)worker;
    while (item < items) {
        int64_t ahead = item < guard ? atomic_fetch_add(&job->next, 1) : -1;
        run_item(job, item, ahead >= 0 && ahead < items ? ahead : item);
        item = ahead >= 0 ? ahead : atomic_fetch_add(&job->next, 1);
    }
}

/* The last panels are cut into blocks of tiles, so that the threads finish together; so are all where there
 * are few. */
static void gemm(const dllm_packed *p, gemm_job *job, int64_t panels) {
    int64_t cut = TAIL * p->threads;
    job->panels = panels;
    job->blocks = p->tiles < BLOCKS ? p->tiles : BLOCKS;
    job->whole = panels > cut ? panels - cut : 0;
    int threads = p->rows * panels * p->g->nr * p->w->k < SMALL_GEMM ? 1 : p->threads;
    if (threads == 1)
        job->whole = panels;
    dllm_parallel(threads, threads, gemm_worker, job);
}

void dllm_packed_gemm(const dllm_packed *p, float *y, const float *residual, int32_t *acc) {
    gemm_job job = {.p = p, .y = y, .residual = residual, .acc = acc, .ldc = p->w->n};
    gemm(p, &job, dllm_ceil_div(p->w->n, p->g->nr));
}

void dllm_packed_gemm_part(const dllm_packed *p, int64_t first, int64_t last, float *y) {
    gemm_job job = {.p = p, .y = y, .ldc = p->w->n, .first_panel = first};
    gemm(p, &job, last - first);
}

int dllm_packed_swiglu(const dllm_packed *p, float *y) {
    const dllm_gemm *g = p->g;
    int64_t width = p->w->n / 2;
    if (p->w->n % 2 || width % g->nr || g->mr > MAX_MR || g->nr > MAX_NR)
        return 0;
    gemm_job job = {.p = p, .y = y, .ldc = width, .half = width / g->nr};
    gemm(p, &job, job.half);
    return 1;
}

void dllm_packed_panels(const dllm_packed *p, int64_t first, int64_t last, float *y, int64_t ldc) {
    gemm_job job = {
        .p = p, .y = y, .ldc = ldc, .first_column = first * p->g->nr, .panels = last, .whole = last};
    for (int64_t panel = first; panel < last; panel++)
        run_item(&job, panel, panel + 1 < last ? panel + 1 : panel);
}

/* ---- public calls ---- */

static int acceptable(const dllm_linear *w, int threads, int64_t rows) {
    return dllm_weight_bytes(w) > 0 && w->k <= DLLM_MAX_K && threads >= 1 && threads <= DLLM_MAX_THREADS &&
           rows >= 1;
}

int64_t dllm_linear_scratch(const dllm_linear *w, int threads, int64_t rows) {
    dllm_packed p;
    return acceptable(w, threads, rows) ? dllm_packed_plan(&p, w, threads, rows, NULL) : 0;
}

int dllm_linear_run(int threads, const dllm_linear *w, const dllm_input *input, int64_t rows, float *y,
                    const float *residual, void *scratch) {
    dllm_packed p;
    if (!acceptable(w, threads, rows))
        return DLLM_BAD_ARGUMENT;
    dllm_packed_plan(&p, w, threads, rows, scratch);
    dllm_packed_fill(&p, input);
    dllm_packed_gemm(&p, y, residual, NULL);
    return DLLM_OK;
}

int dllm_accumulators(int threads, const dllm_linear *w, const float *x, int64_t rows, int8_t *codes,
                      float *scale, int32_t *acc, void *scratch) {
    dllm_packed p;
    if (!acceptable(w, threads, rows) || !dllm_has_codes(w))
        return DLLM_BAD_ARGUMENT;
    dllm_input input = {.kind = DLLM_PLAIN, .x = x};
    dllm_packed_plan(&p, w, threads, rows, scratch);
    dllm_packed_fill(&p, &input);
    dllm_packed_gemm(&p, NULL, NULL, acc);
    for (int64_t r = 0; r < rows; r++)
        memcpy(codes + r * w->k, p.codes + r * p.ld, (size_t)w->k);
    memcpy(scale, p.scale, (size_t)rows * sizeof *scale);
    return DLLM_OK;
}
