/* Every operator but the GEMM, as range kernels: pure functions over rows [begin, end) or over work items.
 *
 * Contract. Pointers name row 0 of an array; strides count elements, not bytes, and are at least the width.
 * No kernel starts a thread, allocates, keeps state or reports an error: the caller has checked shapes. Rows
 * (or items) may be split over threads at will; the result is the same bit for bit. Outputs overlap no input,
 * except where a parameter is said to be updated in place. Scratch belongs to one thread for one call.
 *
 * One table row per ISA: each file is compiled once per DLLM_ISA_SUFFIX and defines dllm_f32_<op>__<suffix>.
 * DLLM_OPS lists the operators once; the declarations below, and a dispatch table, are expansions of it:
 *
 *     #define FIELD(suffix, type, op, parameters) type(*op) parameters;
 *     struct dllm_ops { DLLM_OPS(FIELD, ) };
 *     #define ENTRY(suffix, type, op, parameters) .op = dllm_f32_##op##__##suffix,
 *     static const struct dllm_ops avx2 = { DLLM_OPS(ENTRY, avx2) };
 */
#ifndef DLLM_OPS_H
#define DLLM_OPS_H

#include <stdint.h>

/* How a stored embedding table reads. */
enum { DLLM_STORED_F32 = 0, DLLM_STORED_BF16 = 1, DLLM_STORED_F16 = 2 };

/* Attention within ragged sequences: bidirectional, or to the leading slots that each row may see. H query
 * heads share G key/value heads, H / G each. */
typedef struct {
    const float *q; /* [R, H, D], rows q_stride apart: may be the query part of a fused qkv buffer */
    int64_t q_stride;
    const float *k; /* D floats of slot s and head g at s * slot_stride + g * head_stride */
    const float *v; /* likewise */
    int64_t slot_stride, head_stride;
    float *out; /* [R, H, D], rows out_stride apart */
    int64_t out_stride;
    const int64_t *q_offsets;  /* [S + 1] rows of each sequence */
    const int64_t *kv_offsets; /* [S + 1] slots of each sequence; a row that sees none gives zeros */
    const int64_t *visible;    /* [R] leading slots of its sequence that a row sees; NULL: all */
    int64_t sequences;         /* S */
    int64_t heads;             /* H */
    int64_t kv_heads;          /* G, divides H */
    int64_t head_dim;          /* D; scores are scaled by 1 / sqrt(D) */
} dllm_attention;

/* Running vocabulary statistics of one row. NaN orders above +inf, as numpy's argmax and partition have it.
 */
typedef struct {
    int64_t id;    /* argmax, the lowest id on ties */
    float top;     /* its logit */
    float second;  /* the second largest logit, equal to top on ties; -inf if there is none */
    double total;  /* sum of exp(x - top) */
    double moment; /* sum of exp(x - top) (x - top) */
} dllm_statistics;

/* X(suffix, return type, operator, parameters)
 *
 * exp            out[i] = e^x[i], begin <= i < end: the exponential that the other kernels use (for tests)
 * add            x[i] += y[i], begin <= i < end, in place
 * round_bf16     dllm_core.quant.round_bf16 of x[i], begin <= i < end
 * rms_norm       x / sqrt(mean(x^2) + eps) * weight
 * quantise_rows  dllm_core.quant.quantise_rows: codes row-major, scale [rows]
 * quantise_rows_4bit  likewise dllm_core.quant.quantise_rows_4bit
 * *_quantise     exactly the plain operator followed by quantise_rows; scratch: `width` floats
 * swiglu         gate_up [rows, 2 width] -> silu(first half) * second half [rows, width]
 * rope           in place, heads of head_dim; cos and sin [positions, head_dim / 2]
 * kv_store       row i of k and v, [heads, head_dim] and `stride` apart, to slot slots[i] of the stores;
 *                slot_stride and head_stride as in dllm_attention
 * embed          row ids[i] of table [V, width], stored as DLLM_STORED_*, to out [rows, width]; any
 *                alignment
 *
 * attention_items    number of work items; they write disjoint parts of `out`
 * attention_scratch  bytes of scratch that one thread needs
 * attention_item     runs one item
 *
 * statistics_block   states[row] of `columns` (>= 1) logits whose first has the id `first`
 * statistics_merge   into[row] = both; ids in `from` are all higher. Fold blocks in ascending order, whoever
 *                    computed them, and the result does not depend on the thread count
 * statistics_finish  states -> ids, top, second, logsumexp, entropy (nats), each [rows]
 */
#define DLLM_OPS(X, S)                                                                                       \
    X(S, void, exp, (const float *x, int64_t begin, int64_t end, float *out))                                \
    X(S, void, add, (float *x, const float *y, int64_t begin, int64_t end))                                  \
    X(S, void, round_bf16, (const float *x, int64_t begin, int64_t end, uint16_t *out))                      \
    X(S, void, rms_norm,                                                                                     \
      (const float *x, int64_t x_stride, const float *weight, float eps, int64_t width, int64_t begin,       \
       int64_t end, float *out, int64_t out_stride))                                                         \
    X(S, void, quantise_rows,                                                                                \
      (const float *x, int64_t x_stride, int64_t width, int64_t begin, int64_t end, int8_t *codes,           \
       int64_t codes_stride, float *scale))                                                                  \
    X(S, void, quantise_rows_4bit,                                                                           \
      (const float *x, int64_t x_stride, int64_t width, int64_t begin, int64_t end, int8_t *codes,           \
       int64_t codes_stride, float *scale))                                                                  \
    X(S, void, rms_norm_quantise,                                                                            \
      (const float *x, int64_t x_stride, const float *weight, float eps, int64_t width, int64_t begin,       \
       int64_t end, int8_t *codes, int64_t codes_stride, float *scale, float *scratch))                      \
    X(S, void, swiglu,                                                                                       \
      (const float *gate_up, int64_t stride, int64_t width, int64_t begin, int64_t end, float *out,          \
       int64_t out_stride))                                                                                  \
    X(S, void, swiglu_quantise,                                                                              \
      (const float *gate_up, int64_t stride, int64_t width, int64_t begin, int64_t end, int8_t *codes,       \
       int64_t codes_stride, float *scale, float *scratch))                                                  \
    X(S, void, rope,                                                                                         \
      (float *x, int64_t stride, int64_t heads, int64_t head_dim, const float *cos, const float *sin,        \
       const int64_t *positions, int64_t begin, int64_t end))                                                \
    X(S, void, kv_store,                                                                                     \
      (const float *k, const float *v, int64_t stride, int64_t heads, int64_t head_dim,                      \
       const int64_t *slots, int64_t begin, int64_t end, float *k_store, float *v_store,                     \
       int64_t slot_stride, int64_t head_stride))                                                            \
    X(S, void, embed,                                                                                        \
      (const void *table, int stored, int64_t width, const int64_t *ids, int64_t begin, int64_t end,         \
       float *out))                                                                                          \
    X(S, int64_t, attention_items, (const dllm_attention *a))                                                \
    X(S, int64_t, attention_scratch, (int64_t head_dim))                                                     \
    X(S, void, attention_item, (const dllm_attention *a, int64_t item, void *scratch))                       \
    X(S, void, statistics_block,                                                                             \
      (const float *logits, int64_t stride, int64_t columns, int64_t first, int64_t begin, int64_t end,      \
       dllm_statistics *states))                                                                             \
    X(S, void, statistics_merge,                                                                             \
      (dllm_statistics * into, const dllm_statistics *from, int64_t begin, int64_t end))                     \
    X(S, void, statistics_finish,                                                                            \
      (const dllm_statistics *states, int64_t begin, int64_t end, int64_t *ids, float *top, float *second,   \
       float *logsumexp, float *entropy))

#define DLLM_OP_DECLARE(S, type, op, parameters) type dllm_f32_##op##__##S parameters;
DLLM_OPS(DLLM_OP_DECLARE, scalar)
DLLM_OPS(DLLM_OP_DECLARE, avx2)
DLLM_OPS(DLLM_OP_DECLARE, avx512vnni)

/* The name of an operator in the file being compiled. */
#define DLLM_OP_JOIN(op, suffix) dllm_f32_##op##__##suffix
#define DLLM_OP_NAME(op, suffix) DLLM_OP_JOIN(op, suffix)
#define DLLM_OP(op) DLLM_OP_NAME(op, DLLM_ISA_SUFFIX)

#endif
