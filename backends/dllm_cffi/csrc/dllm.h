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
#define DLLM_QB4W 3 /* qd8-f32-qb4w: the same with codes of four bits, two in a byte */
#define DLLM_BF16 4 /* weights and activations rounded to bfloat16, float32 sums */
#define DLLM_SCHEMES 5
#define DLLM_GROUP 128

#define DLLM_MAX_K 131072 /* inputs of a layer: int32 sums of products of codes cannot overflow */
#define DLLM_MAX_THREADS 256

/* ---- the dispatch table: one row per instruction set, best first ---- */

int dllm_row_count(void);
const char *dllm_row_name(int row); /* "avx512vnni", ... or NULL */
int dllm_row_supported(int row);    /* this CPU and operating system can run it */
const char *dllm_last_kernel(void); /* full name of the GEMM kernel that ran last, "" before the first */

/* ---- linear layers ---- */

/* A packed weight. `weight` holds panels of nr outputs: [panel][k / kr][nr][kr], 64-byte aligned. Of the kr
 * codes of four bits the first half are the lower halves of kr / 2 bytes, the others the upper ones. */
typedef struct {
    int64_t n, k;   /* outputs, inputs */
    int32_t scheme; /* DLLM_F32, ... */
    int32_t row;    /* the row of the dispatch table whose layout this is */
    void *weight;   /* dllm_weight_bytes */
    float *scale;   /* [panel][group][nr], dllm_scale_bytes; NULL for f32 and bf16 */
    float *bias;    /* [panel][nr], zero beyond n; or NULL */
} dllm_linear;

int64_t dllm_groups(const dllm_linear *w); /* weight scales per output; 0 for f32 and bf16 */
int64_t dllm_weight_bytes(const dllm_linear *w);
int64_t dllm_scale_bytes(const dllm_linear *w);
int64_t dllm_bias_bytes(const dllm_linear *w); /* whether or not there is a bias */

/* How the panels of a scheme lie: outputs and inputs that are neighbours, and what is added to a code. */
typedef struct {
    int32_t columns, depth, zero_point; /* nr, kr */
} dllm_panels;

int dllm_panel_shape(const dllm_linear *w, dllm_panels *shape);

/* Quantises (or copies) the float32 rows [count, k] into outputs first..first+count-1. Calls must come in
 * order of `first` and cover every output once; the last one fills the panel up with zeros. */
int dllm_pack(int threads, dllm_linear *w, const float *rows, int64_t first, int64_t count);

/* Inverse of the packing: codes int8 [n, k] with scales [n, groups], or for f32 and bf16 `values` [n, k]. */
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

/* ---- the other operators, on contiguous float32 rows; `row` is a row of the dispatch table ---- */

/* Rows are tokens of `sequences` sequences laid end to end, see dllm_core/backend.py. */
typedef struct {
    int64_t rows, sequences;
    const int64_t *positions;  /* [rows] */
    const int64_t *slots;      /* [rows] key/value slot that each row writes, or NULL */
    const int64_t *q_offsets;  /* [sequences + 1] */
    const int64_t *kv_offsets; /* [sequences + 1] */
    const int64_t *visible;    /* [rows] leading slots of its sequence that a row sees; NULL: all */
} dllm_rows;

int dllm_rms_norm(int row, int threads, const float *x, const float *weight, float eps, int64_t rows,
                  int64_t width, float *y);
int dllm_rope(int row, int threads, float *x, int64_t heads, int64_t head_dim, const float *cos,
              const float *sin, const int64_t *positions, int64_t rows);
int dllm_swiglu(int row, int threads, const float *gate_up, int64_t rows, int64_t width, float *y);
int dllm_add(int row, int threads, float *x, const float *y, int64_t count);
int dllm_embed(int row, int threads, const void *table, int stored, int64_t width, const int64_t *ids,
               int64_t rows, float *y); /* stored: 0 float32, 1 bfloat16, 2 float16 */

int64_t dllm_attention_scratch(int row, int threads, int64_t head_dim);
int dllm_attention_run(int row, int threads, const float *q, const float *k, const float *v, int64_t heads,
                       int64_t kv_heads, int64_t head_dim, const dllm_rows *rows, float *y, void *scratch);

/* Vocabulary statistics, arrays of [rows]: see dllm_core.backend.Scores. */
typedef struct {
    int64_t *ids;
    float *top, *second, *logsumexp, *entropy;
} dllm_scores;

int64_t dllm_statistics_scratch(int64_t rows, int64_t columns);
int dllm_statistics_run(int row, int threads, const float *logits, int64_t rows, int64_t columns,
                        const dllm_scores *scores, void *scratch);

/* The statistics of linear(x), block of the vocabulary by block: the logits never exist together. */
int64_t dllm_score_scratch(const dllm_linear *head, int threads, int64_t rows);
int dllm_score(int threads, const dllm_linear *head, const float *x, int64_t rows, const dllm_scores *scores,
               void *scratch);

/* ---- whole transformer layers ---- */

typedef struct {
    const dllm_linear *qkv, *attn_out, *gate_up, *down;
    const float *attn_norm, *mlp_norm; /* [d] */
    const float *cos, *sin;            /* [positions, head_dim / 2] */
    int64_t heads, kv_heads, head_dim;
    float eps;
} dllm_layer;

/* Seconds spent in one layer are added here. */
typedef struct {
    double gemm, attention;
} dllm_seconds;

/* Keys and values of one layer: head_dim floats of slot s and head g at s * slot_stride + g * head_stride.
 * Heads that lie one after the other are read as two streams, which is what attention to many slots is
 * limited by. */
typedef struct {
    float *k, *v;
    int64_t slot_stride, head_stride;
} dllm_kv;

int64_t dllm_layers_scratch(int64_t count, const dllm_layer *const *layers, int threads, int64_t rows);

/* y = the last layer(... the first layer(x)), x [rows, d], each with its keys and values, which are stored
 * where rows->slots is set. `queries` are the rows that attend in the last layer and are returned, y
 * [queries->rows, d]: `rows` itself, or the rows keep[queries->rows] of it. y and x do not overlap. Several
 * layers a call, because what runs between calls finds its own memory flushed from the caches. */
int dllm_layers_run(int threads, int64_t count, const dllm_layer *const *layers, const dllm_rows *rows,
                    const dllm_rows *queries, const int64_t *keep, const float *x, const dllm_kv *const *kv,
                    float *y, void *scratch, dllm_seconds *seconds);

/* ---- the machine's limits, see dllm_core/bench ---- */

#define DLLM_PEAK_INT8 0
#define DLLM_PEAK_BF16 1
#define DLLM_PEAK_F32 2
#define DLLM_PEAK_INT4 3 /* int8 by int4, where another instruction than for int8 does that */

/* The instruction that does most products of this kind in a row's kernels; NULL if there is none. */
const char *dllm_peak_instruction(int row, int kind);

/* Its operations a second, a multiply and an add counting one each, over `items` pieces of work of some tens
 * of microseconds; 0 if there is none. */
double dllm_peak(int row, int threads, int kind, int64_t items);

/* Bytes a second of reading a 64-byte aligned buffer, in pieces of 1 MiB. */
double dllm_peak_read(int row, int threads, const void *buffer, int64_t bytes);

/* Seconds that a cache line takes from one thread to another and back; 0 if no second thread came. */
double dllm_peak_handover(void);

/* cdef-end */

#endif
