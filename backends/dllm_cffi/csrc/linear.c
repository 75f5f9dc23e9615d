/* The linear layer: tiles of input (activations.c) times panels of weights, threaded over panels.
 *
 * Work is never split along k, so no result depends on the thread count. */
#include <string.h>

#include "linear.h"
#include "pool.h"

enum {
    SMALL_GEMM = 1 << 21, /* multiplications below which another thread costs more than it saves */
    FEW_ROWS = 4,         /* up to here memory is the limit */
    TAIL = 2,             /* panels a thread that are cut, ... */
    BLOCKS = 8,           /* ... into so many items at most */
    MAX_MR = 16,          /* the largest tile of rows by panels that run_pair has room for */
    MAX_NR = 64,
    LINE = 16, /* floats of a cache line */
};

static _Atomic(const char *) last_kernel = "";

const char *dllm_last_kernel(void) {
    return atomic_load(&last_kernel);
}

typedef struct {
    dllm_packed *p;
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
    t->mr = dllm_tile_rows(p, i, &first);
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

/* The lines that a tile will write, long before it does. Left to the stores at its end, they would all be
 * fetched at once and nothing else meanwhile: 2 to 4 % of a layer's time. */
static void touch_rows(const float *y, int64_t stride, int rows, int64_t columns) {
    for (int r = 0; y && r < rows; r++)
        for (int64_t column = 0; column < columns; column += LINE)
            __builtin_prefetch(y + r * stride + column, 1, 2);
}

/* Tiles [from, to) of one panel; their steps touch panel `ahead`. */
static const char *run_panel(const gemm_job *job, int64_t panel, int64_t from, int64_t to, int64_t ahead) {
    const dllm_packed *p = job->p;
    const dllm_gemm *g = p->g;
    int64_t touch = touched(p, to - from);
    dllm_tile t = new_tile(job, panel, touch);
    for (int64_t i = from; i < to; i++) {
        dllm_packed_wait(p, i);
        place_tile(job, &t, i, panel * g->nr - job->first_column);
        t.prefetch = panel_at(p, touch ? ahead : panel) + (i - from) * p->steps * touch;
        touch_rows(t.c, t.ldc, t.mr, g->nr);
        if (t.residual != t.c)
            touch_rows(t.residual, t.ldc, t.mr, g->nr);
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
        dllm_packed_wait(p, i);
        int64_t columns = 2 * g->nr, first = place_tile(job, &t[0], i, 0);
        float *y = job->y + first * job->ldc + panel * g->nr;
        touch_rows(y, job->ldc, t[0].mr, g->nr);
        for (int h = 0; h < 2; h++) {
            place_tile(job, &t[h], i, 0);
            t[h].c = sums + h * g->nr;
            t[h].ldc = columns;
            t[h].prefetch =
                panel_at(p, (touch ? ahead : panel) + h * job->half) + (i - from) * p->steps * touch;
            g->gemm(&t[h]);
        }
        p->row->ops->swiglu(sums, columns, g->nr, 0, t[0].mr, y, job->ldc);
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
    (void)unused;
    dllm_packed_fill(job->p, worker);
    int64_t item = atomic_fetch_add(&job->next, 1);
    while (item < items) {
        int64_t ahead = item < guard ? atomic_fetch_add(&job->next, 1) : -1;
        run_item(job, item, ahead >= 0 && ahead < items ? ahead : item);
        item = ahead >= 0 ? ahead : atomic_fetch_add(&job->next, 1);
    }
}

/* The last panels are cut into blocks of tiles, so that the threads finish together; so are all where there
 * are few. */
static void gemm(dllm_packed *p, gemm_job *job, int64_t panels) {
    int64_t cut = TAIL * p->threads;
    job->panels = panels;
    job->blocks = p->tiles < BLOCKS ? p->tiles : BLOCKS;
    job->whole = panels > cut ? panels - cut : 0;
    int threads = p->rows * panels * p->g->nr * p->w->k < SMALL_GEMM ? 1 : p->threads;
    if (threads == 1)
        job->whole = panels;
    dllm_parallel(threads, threads, gemm_worker, job);
}

void dllm_packed_gemm(dllm_packed *p, float *y, const float *residual, int32_t *acc) {
    gemm_job job = {.p = p, .y = y, .residual = residual, .acc = acc, .ldc = p->w->n};
    gemm(p, &job, dllm_ceil_div(p->w->n, p->g->nr));
}

void dllm_packed_gemm_part(dllm_packed *p, int64_t first, int64_t last, float *y) {
    gemm_job job = {.p = p, .y = y, .ldc = p->w->n, .first_panel = first};
    gemm(p, &job, last - first);
}

int dllm_packed_swiglu(dllm_packed *p, float *y) {
    const dllm_gemm *g = p->g;
    int64_t width = p->w->n / 2;
    if (p->w->n % 2 || width % g->nr || g->mr > MAX_MR || g->nr > MAX_NR)
        return 0;
    gemm_job job = {.p = p, .y = y, .ldc = width, .half = width / g->nr};
    gemm(p, &job, job.half);
    return 1;
}

void dllm_packed_panels(dllm_packed *p, int worker, int64_t first, int64_t last, float *y, int64_t ldc) {
    gemm_job job = {
        .p = p, .y = y, .ldc = ldc, .first_column = first * p->g->nr, .panels = last, .whole = last};
    dllm_packed_fill(p, worker);
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
    return acceptable(w, threads, rows) ? dllm_packed_plan(&p, w, threads, rows, NULL, NULL) : 0;
}

int dllm_linear_run(int threads, const dllm_linear *w, const dllm_input *input, int64_t rows, float *y,
                    const float *residual, void *scratch) {
    dllm_packed p;
    if (!acceptable(w, threads, rows))
        return DLLM_BAD_ARGUMENT;
    dllm_packed_plan(&p, w, threads, rows, input, scratch);
    dllm_packed_gemm(&p, y, residual, NULL);
    return DLLM_OK;
}

int dllm_accumulators(int threads, const dllm_linear *w, const float *x, int64_t rows, int8_t *codes,
                      float *scale, int32_t *acc, void *scratch) {
    dllm_packed p;
    if (!acceptable(w, threads, rows) || !dllm_has_codes(w))
        return DLLM_BAD_ARGUMENT;
    dllm_input input = {.kind = DLLM_PLAIN, .x = x};
    dllm_packed_plan(&p, w, threads, rows, &input, scratch);
    dllm_packed_gemm(&p, NULL, NULL, acc);
    p.row->ops->quantise_rows(x, w->k, w->k, 0, rows, codes, w->k, scale);
    return DLLM_OK;
}
