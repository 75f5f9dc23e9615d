/* The public C interface of the kernels. Everything between the two markers is also the cdef of the Python
 * module, so it is plain declarations only. Functions return a status and never print or abort. */
#ifndef DLLM_H
#define DLLM_H

#include <stdint.h>

/* cdef-begin */

/* Status of a call. */
#define DLLM_OK 0
#define DLLM_BAD_ARGUMENT 1 /* a size, scheme or row that the function cannot take */
#define DLLM_NO_MEMORY 2

/* Quantisation schemes, see dllm_core/quant.py for their meaning. */
#define DLLM_F32 0
#define DLLM_QC8W 1 /* qd8-f32-qc8w: one weight scale per output */
#define DLLM_QB8W 2 /* qd8-f32-qb8w: one weight scale per output and group of DLLM_GROUP inputs */
#define DLLM_GROUP 128

#define DLLM_MAX_K 131072 /* inputs of an int8 layer: int32 sums of products of codes cannot overflow */
#define DLLM_MAX_THREADS 256

/* ---- the dispatch table: one row per instruction set, best first ---- */

int dllm_row_count(void);
const char *dllm_row_name(int row); /* "avx512vnni", ... or NULL */
int dllm_row_supported(int row);    /* this CPU and operating system can run it */
const char *dllm_last_kernel(void); /* full name of the GEMM kernel that ran last, "" before the first */

/* ---- linear layers ---- */

/* A packed weight. `weight` holds panels of nr outputs: [panel][k / kr][nr][kr], 64-byte aligned. */
typedef struct {
    int64_t n, k;    /* outputs, inputs */
    int32_t scheme;  /* DLLM_F32, ... */
    int32_t row;     /* the row of the dispatch table whose layout this is */
    void *weight;    /* dllm_weight_bytes */
    float *scale;    /* [panel][group][nr], dllm_scale_bytes; NULL for f32 */
    float *bias;     /* [panel][nr], zero beyond n; or NULL */
} dllm_linear;

int64_t dllm_groups(const dllm_linear *w); /* weight scales per output; 0 for f32 */
int64_t dllm_weight_bytes(const dllm_linear *w);
int64_t dllm_scale_bytes(const dllm_linear *w);
int64_t dllm_bias_bytes(const dllm_linear *w); /* whether or not there is a bias */

/* Quantises (or copies) the float32 rows [count, k] into outputs first..first+count-1. Calls must come in order
 * of `first` and cover every output once; the last one fills the panel up with zeros. */
int dllm_pack(int threads, dllm_linear *w, const float *rows, int64_t first, int64_t count);

/* Inverse of the packing: codes int8 [n, k] with scales [n, groups], or float32 [n, k] in `values`. */
int dllm_unpack(const dllm_linear *w, int8_t *codes, float *scales, float *values);

/* What a linear layer reads, row by row. */
#define DLLM_PLAIN 0  /* x itself */
#define DLLM_NORMED 1 /* rms_norm(x) * norm */
#define DLLM_SWIGLU 2 /* silu(first half of x) * second half: x has 2 k columns */

typedef struct {
    int32_t kind;
    float eps;
    const float *x;    /* [rows, k], or [rows, 2 k] */
    const float *norm; /* [k], for DLLM_NORMED */
} dllm_input;

/* Scratch for a call with these rows: bytes, 64-byte aligned memory of the caller. */
int64_t dllm_linear_scratch(const dllm_linear *w, int threads, int64_t rows);

/* y [rows, n] = linear(input) + bias (+ residual [rows, n]). y may be the residual itself. */
int dllm_linear_run(int threads, const dllm_linear *w, const dllm_input *input, int64_t rows, float *y,
                    const float *residual, void *scratch);

/* The integers behind a quantised linear: codes [rows, k], scale [rows], acc int32 [groups, rows, n]. */
int dllm_accumulators(int threads, const dllm_linear *w, const float *x, int64_t rows, int8_t *codes,
                      float *scale, int32_t *acc, void *scratch);

/* cdef-end */

#endif
