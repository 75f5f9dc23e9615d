/* The linear layer as a building block of larger calls. Internal. */
#ifndef DLLM_LINEAR_H
#define DLLM_LINEAR_H

#include <stdatomic.h>

#include "row.h"

/* Activations of one call, packed for the tiles of one GEMM kernel. */
typedef struct {
    const dllm_linear *w;
    const dllm_row *row;
    const dllm_gemm *g;
    int threads;
    int64_t rows, tiles;   /* rows are cut into `tiles` near-equal tiles of at most g->mr */
    int64_t group, groups; /* inputs per weight scale; at least one group */
    int64_t steps, ld;     /* k / kr rounded up; elements between rows before they are interleaved */
    float *values;         /* [rows][ld]: normed or activated rows (f32) */
    float *line;           /* [threads][k]: one such row at a time (other schemes) */
    uint16_t *halves;      /* [rows][ld]: rows rounded to bfloat16 (bf16) */
    int8_t *codes;         /* [rows][ld] */
    float *scale;          /* [rows] */
    int32_t *row_start;    /* [rows][groups] */
    int32_t *start;        /* per tile: [groups][mr] */
    void *a;               /* per tile: [steps][mr][kr] */
} dllm_packed;

/* Lays the arrays out from `scratch` on (64-byte aligned; NULL to measure) and returns the bytes they need.
 */
int64_t dllm_packed_plan(dllm_packed *p, const dllm_linear *w, int threads, int64_t rows, void *scratch);

/* The same for a given kernel of w's layout. */
int64_t dllm_packed_plan_for(dllm_packed *p, const dllm_gemm *g, const dllm_linear *w, int threads,
                             int64_t rows, void *scratch);

/* Computes, quantises and interleaves the input rows. */
void dllm_packed_fill(dllm_packed *p, const dllm_input *input);

/* y [rows, n] = packed rows times weights + bias (+ residual). `acc` and y may be NULL, see dllm_tile. */
void dllm_packed_gemm(const dllm_packed *p, float *y, const float *residual, int32_t *acc);

/* The same for the columns of y that the panels [first, last) hold. */
void dllm_packed_gemm_part(const dllm_packed *p, int64_t first, int64_t last, float *y);

/* y [rows, n / 2] = silu(first half of the outputs) * second half, as the operator swiglu has it, without a
 * trip of the outputs to memory. 0, and nothing is done, where the halves do not begin with a panel. */
int dllm_packed_swiglu(const dllm_packed *p, float *y);

/* The panels [first, last) of all rows on the calling thread: y [rows, ldc] is their first
 * column. */
void dllm_packed_panels(const dllm_packed *p, int64_t first, int64_t last, float *y, int64_t ldc);

#endif
