/* What one row of the dispatch table offers. Internal. */
#ifndef DLLM_ROW_H
#define DLLM_ROW_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dllm.h"
#include "ops.h"

/* One panel of weights times one tile of rows: the unit of work of a GEMM kernel.
 *
 *   a  packed activations of mr rows: [k_steps][mr][kr], or as the kernel's `pack_a` writes them
 *   b  one panel of weights:          [k_steps][nr][kr]
 *   c  the mr x cols outputs:         c[i * ldc + j]
 *
 * f32 and bf16 kernels read a, b, bias and residual. In kernels of codes the integer sum of group g and row i
 * starts at a_start[g * mr + i], and out = (sum over g of sum * b_scale[g * nr + j]) * a_scale[i] + bias +
 * residual.
 */
typedef struct {
    const void *a, *b;
    int64_t k_steps, group_steps; /* steps of kr inputs: all, and per weight scale */
    const int32_t *a_start;       /* [groups][mr]; unused where `start` is NULL */
    const float *a_scale;         /* [mr]; NULL for f32 and bf16 */
    const float *b_scale;         /* [groups][nr] */
    const float *bias;            /* [nr] or NULL */
    const float *residual;        /* like c, or NULL */
    float *c;                     /* NULL: integer sums only */
    int64_t ldc;
    int32_t *acc; /* integer sums acc[g * acc_group + i * ldc + j] are stored here; NULL except in checks */
    int64_t acc_group;
    int mr, cols;
    int prefetch_step;    /* every step touches one cache line at `prefetch` and moves it by this ... */
    const char *prefetch; /* ... so that the next panel is in cache in time */
    const char *kernel;   /* set by the kernel: its name */
} dllm_tile;

/* A GEMM kernel and its packed layout. */
typedef struct dllm_gemm {
    int mr, nr, kr;
    int a_bytes, b_bits;    /* of one packed activation, of one packed weight */
    int zero_point;         /* added to stored codes: 128 where int8 is stored unsigned; 8 for int4; else 0 */
    int (*supported)(void); /* whether this CPU has what the row alone does not promise; or NULL */
    const struct dllm_gemm *fallback; /* what runs otherwise, on the same packed weights */
    /* Interleaves `steps` steps of mr rows, which lie `ld` elements apart, into a: [steps][mr][kr]. Elements
     * are floats, bfloat16 (its bits as uint16) or codes. */
    void (*pack_a)(const void *rows, int64_t ld, int mr, int64_t steps, void *a);
    /* start[g] = -zero_point * sum of the codes of group g; codes are zero up to a multiple of 64 past k.
     * NULL where the kernel needs none. */
    void (*start)(const int8_t *codes, int64_t k, int64_t group, int32_t *start);
    void (*gemm)(dllm_tile *t);
} dllm_gemm;

/* Every other operator, see ops.h. */
#define DLLM_OP_FIELD(suffix, type, op, parameters) type(*op) parameters;
typedef struct {
    DLLM_OPS(DLLM_OP_FIELD, )
} dllm_ops;

typedef struct {
    const char *name;
    int (*supported)(void);
    const dllm_gemm *gemm[DLLM_SCHEMES]; /* NULL: the row has no kernel for it */
    const dllm_ops *ops;
} dllm_row;

const dllm_row *dllm_get_row(int row); /* NULL if there is none */

/* The kernel that runs a packed weight, NULL if its row, scheme or sizes are none (pack.c). */
const dllm_gemm *dllm_kernel(const dllm_linear *w);

/* Inputs per weight scale, and bytes of a panel of weights. */
int64_t dllm_group(const dllm_linear *w);
int64_t dllm_panel_bytes(const dllm_linear *w, const dllm_gemm *g);

/* Attention on the pool (operators.c); scratch: dllm_attention_scratch. */
void dllm_attend(const dllm_ops *ops, int threads, const dllm_attention *a, void *scratch);

/* The kernel descriptions, one per kernel file. */
extern const dllm_gemm dllm_bf16_f32_gemm_4x8c1__scalar, dllm_bf16_f32_gemm_6x16c2__avx2,
    dllm_bf16_f32_gemm_14x32c2__avx512vnni, dllm_bf16_f32_gemm_14x32c2_fma__avx512vnni;
extern const dllm_gemm dllm_f32_gemm_4x8c1__scalar, dllm_qd8_f32_qb8w_gemm_4x8c1__scalar,
    dllm_qd8_f32_qb4w_gemm_4x8c2__scalar;
extern const dllm_gemm dllm_f32_gemm_6x16c1__avx2, dllm_qd8_f32_qb8w_gemm_6x16c2__avx2,
    dllm_qd8_f32_qb4w_gemm_6x16c8__avx2;
extern const dllm_gemm dllm_qd8_f32_qb8w_gemm_6x16c4__avxvnni, dllm_qd8_f32_qb4w_gemm_6x16c8__avxvnni;
extern const dllm_gemm dllm_f32_gemm_14x32c1__avx512vnni, dllm_qd8_f32_qc8w_gemm_14x32c4__avx512vnni,
    dllm_qd8_f32_qb8w_gemm_7x32c4__avx512vnni, dllm_qd8_f32_qb4w_gemm_7x32c8__avx512vnni;
extern const dllm_gemm dllm_bf16_f32_gemm_6x16c1__neon, dllm_bf16_f32_gemm_8x8c4__neoni8mm;
extern const dllm_gemm dllm_f32_gemm_6x16c1__neon, dllm_qd8_f32_qb8w_gemm_4x16c2__neon,
    dllm_qd8_f32_qb4w_gemm_4x16c4__neon;
extern const dllm_gemm dllm_qd8_f32_qb8w_gemm_6x16c4__neondot, dllm_qd8_f32_qb4w_gemm_6x16c8__neondot;
extern const dllm_gemm dllm_qd8_f32_qb8w_gemm_8x8c8__neoni8mm, dllm_qd8_f32_qb4w_gemm_8x8c16__neoni8mm;

/* Whether cpuid leaf 7, subleaf 1 has this bit of EAX set (cpu_x86.c). That the system saves the registers is
 * for the row to know. */
int dllm_has_cpuid_7_1(int bit);
enum { DLLM_AVXVNNI_BIT = 4, DLLM_AVX512BF16_BIT = 5 };

/* What the CPU has beyond NEON (cpu_arm.c). */
int dllm_has_neondot(void);
int dllm_has_neoni8mm(void);

#define DLLM_INLINE static inline __attribute__((always_inline))

/* DLLM_RUN_TILE(MR) calls tile(mr, t) with mr = t->mr as a constant, so that the sums of every mr up to MR
 * live in registers. */
#define DLLM_CASE(mr)                                                                                        \
    case mr:                                                                                                 \
        tile(mr, t);                                                                                         \
        break;
#define DLLM_CASES_4 DLLM_CASE(1) DLLM_CASE(2) DLLM_CASE(3) DLLM_CASE(4)
#define DLLM_CASES_6 DLLM_CASES_4 DLLM_CASE(5) DLLM_CASE(6)
#define DLLM_CASES_7 DLLM_CASES_6 DLLM_CASE(7)
#define DLLM_CASES_11 DLLM_CASES_7 DLLM_CASE(8) DLLM_CASE(9) DLLM_CASE(10) DLLM_CASE(11)
#define DLLM_CASES_14 DLLM_CASES_11 DLLM_CASE(12) DLLM_CASE(13) DLLM_CASE(14)
#define DLLM_RUN_TILE(most)                                                                                  \
    switch (t->mr) { DLLM_CASES_##most }

enum {
    DLLM_F32_CHUNK = 256
}; /* products that a kernel of float32 sums adds up before it adds their sum to the total */

/* Whether weights and activations are integers with scales. */
static inline int dllm_has_codes(const dllm_linear *w) {
    return w->scheme != DLLM_F32 && w->scheme != DLLM_BF16;
}

/* The float32 that a bfloat16 is the upper half of. */
static inline float dllm_widen(uint16_t upper) {
    const uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int64_t dllm_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t dllm_round_up(int64_t a, int64_t b) {
    return dllm_ceil_div(a, b) * b;
}

/* The next `bytes` of scratch memory, 64-byte aligned; NULL where base is, to measure what is `used`. */
static inline void *dllm_carve(void *base, int64_t *used, int64_t bytes) {
    char *at = base ? (char *)base + *used : NULL;
    *used += dllm_round_up(bytes, 64);
    return at;
}

#endif
