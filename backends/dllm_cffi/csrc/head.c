/* The output head with the vocabulary statistics: blocks of logits that stay in cache, each reduced at once.
 */
#include "linear.h"
#include "pool.h"

enum { PANELS = 16, COLUMNS = 2048 }; /* of a block: in the head, and of given logits */

/* Blocks do not depend on the threads, and states are merged in ascending order: nor does the result. */
typedef struct {
    const dllm_ops *ops;
    dllm_packed *p; /* the head and its rows, or NULL: logits are given */
    const float *given;
    float *logits; /* [threads][rows][PANELS * nr] */
    int64_t rows, columns, blocks;
    dllm_statistics *states; /* [blocks][rows] */
    const dllm_scores *scores;
} score_job;

static void score_block(void *arg, int64_t block, int worker) {
    const score_job *j = arg;
    dllm_packed *p = j->p;
    int64_t panels = dllm_ceil_div(p->w->n, p->g->nr), width = PANELS * p->g->nr;
    int64_t first = block * PANELS, last = first + PANELS < panels ? first + PANELS : panels;
    int64_t column = first * p->g->nr, columns = p->w->n - column < width ? p->w->n - column : width;
    float *logits = j->logits + worker * j->rows * width;
    dllm_packed_panels(p, worker, first, last, logits, width);
    j->ops->statistics_block(logits, width, columns, column, 0, j->rows, j->states + block * j->rows);
}

static void reduce_block(void *arg, int64_t block, int worker) {
    const score_job *j = arg;
    int64_t first = block * COLUMNS, left = j->columns - first;
    (void)worker;
    j->ops->statistics_block(j->given + first, j->columns, left < COLUMNS ? left : COLUMNS, first, 0, j->rows,
                             j->states + block * j->rows);
}

static void finish_row(void *arg, int64_t row, int worker) {
    const score_job *j = arg;
    const dllm_scores *s = j->scores;
    (void)worker;
    for (int64_t block = 1; block < j->blocks; block++)
        j->ops->statistics_merge(j->states, j->states + block * j->rows, row, row + 1);
    j->ops->statistics_finish(j->states, row, row + 1, s->ids, s->top, s->second, s->logsumexp, s->entropy);
}

static int64_t plan(score_job *j, dllm_packed *p, const dllm_linear *head, int threads, int64_t rows,
                    const dllm_input *input, void *scratch) {
    int64_t used = dllm_packed_plan(p, head, threads, rows, input, scratch);
    *j = (score_job){.ops = p->row->ops, .p = p, .rows = rows};
    j->blocks = dllm_ceil_div(dllm_ceil_div(head->n, p->g->nr), PANELS);
    j->logits = dllm_carve(scratch, &used, threads * rows * PANELS * p->g->nr * (int64_t)sizeof(float));
    j->states = dllm_carve(scratch, &used, j->blocks * rows * (int64_t)sizeof(dllm_statistics));
    return used;
}

int64_t dllm_score_scratch(const dllm_linear *head, int threads, int64_t rows) {
    score_job job;
    dllm_packed p;
    return dllm_linear_scratch(head, threads, rows) ? plan(&job, &p, head, threads, rows, NULL, NULL) : 0;
}

int dllm_score(int threads, const dllm_linear *head, const float *x, int64_t rows, const dllm_scores *scores,
               void *scratch) {
    if (!dllm_linear_scratch(head, threads, rows))
        return DLLM_BAD_ARGUMENT;
    score_job job;
    dllm_packed p;
    dllm_input input = {.kind = DLLM_PLAIN, .x = x};
    plan(&job, &p, head, threads, rows, &input, scratch);
    job.scores = scores;
    dllm_parallel(threads, job.blocks, score_block, &job);
    dllm_parallel(job.blocks * rows < 256 ? 1 : threads, rows, finish_row, &job);
    return DLLM_OK;
}

int64_t dllm_statistics_scratch(int64_t rows, int64_t columns) {
    return dllm_ceil_div(columns, COLUMNS) * rows * (int64_t)sizeof(dllm_statistics);
}

int dllm_statistics_run(int row, int threads, const float *logits, int64_t rows, int64_t columns,
                        const dllm_scores *scores, void *scratch) {
    const dllm_row *r = dllm_get_row(row);
    if (!r || threads < 1 || rows < 1 || columns < 1)
        return DLLM_BAD_ARGUMENT;
    score_job job = {.ops = r->ops,
                     .given = logits,
                     .rows = rows,
                     .columns = columns,
                     .blocks = dllm_ceil_div(columns, COLUMNS),
                     .states = scratch,
                     .scores = scores};
    dllm_parallel(threads, job.blocks, reduce_block, &job);
    dllm_parallel(job.blocks * rows < 256 ? 1 : threads, rows, finish_row, &job);
    return DLLM_OK;
}
