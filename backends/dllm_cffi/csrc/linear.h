/* The linear layer as a building block of larger calls. Internal. */
#ifndef DLLM_LINEAR_H
#define DLLM_LINEAR_H

#include <stdatomic.h>

#include "row.h"

/* The input of one call, and what it becomes: tiles for one GEMM kernel. Whoever multiplies makes tiles
 * first, one by one, as long as there are any. */
typedef struct {
    const dllm_linear *w;
    const dllm_row *row;
    const dllm_gemm *g;
    dllm_input input;
    int threads;
    int64_t rows, tiles;   /* rows are cut into `tiles` near-equal tiles of at most g->mr */
    int64_t group, groups; /* inputs per weight scale; at least one group */
    int64_t steps, ld;     /* k / kr rounded up; elements between rows before they are interleaved */
    float *line;           /* [threads][k]: a normed or activated row */
    char *strips;          /* [threads], `strip` bytes each: the rows of a tile before they are interleaved */
    int64_t strip;
    float *scale;              /* [rows] */
    int32_t *row_start;        /* [threads][rows of a tile][groups] */
    int32_t *start;            /* per tile: [groups][mr] */
    void *a;                   /* per tile: [steps][mr][kr] */
    _Atomic int64_t next_tile; /* the first that nobody has taken */
    atomic_int *ready;         /* [tiles] */
} dllm_packed;

/* Lays the arrays out from `scratch` on (64-byte aligned; NULL to measure) and returns the bytes they need.
 */
int64_t dllm_packed_plan(dllm_packed *p, const dllm_linear *w, int threads, int64_t rows,
                         const dllm_input *input, void *scratch);

/* The same for a given kernel of w's layout. */
int64_t dllm_packed_plan_for(dllm_packed *p, const dllm_gemm *g, const dllm_linear *w, int threads,
                             int64_t rows, const dllm_input *input, void *scratch);

/* Tile `tile` covers rows *first .. *first + the result - 1; sizes differ by at most one. */
int dllm_tile_rows(const dllm_packed *p, int64_t tile, int64_t *first);

/* Makes tiles, normed or activated, quantised and interleaved, until all are taken. */
void dllm_packed_fill(dllm_packed *p, int worker);

/* Until tile `tile` is made by whoever took it. */
void dllm_packed_wait(const dllm_packed *p, int64_t tile);

/* y [rows, n] = input rows times weights + bias (+ residual). `acc` and y may be NULL, see dllm_tile. */
void dllm_packed_gemm(dllm_packed *p, float *y, const float *residual, int32_t *acc);

/* The same for the columns of y that the panels [first, last) hold. */
void dllm_packed_gemm_part(dllm_packed *p, int64_t first, int64_t last, float *y);

/* y [rows, n / 2] = silu(first half of the outputs) * second half, as the operator swiglu has it, without a
 * trip of the outputs to memory. 0, and nothing is done, where the halves do not begin with a panel. */
int dllm_packed_swiglu(dllm_packed *p, float *y);

/* The panels [first, last) of all rows on the calling thread, which is `worker`: y [rows, ldc] is their first
 * column. */
void dllm_packed_panels(dllm_packed *p, int worker, int64_t first, int64_t last, float *y, int64_t ldc);

#endif
