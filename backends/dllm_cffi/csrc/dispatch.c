/* The dispatch table: one row per instruction set, best first, each tested against the CPU at run time. */
#include <stddef.h>

#include "row.h"

#define ENTRY(suffix, type, op, parameters) .op = dllm_f32_##op##__##suffix,

static int always(void) {
    return 1;
}

/* For the baseline. On aarch64 that is NEON, and nothing newer would help these operators. */
static const dllm_ops scalar_ops = {DLLM_OPS(ENTRY, scalar)};

/* __builtin_cpu_supports also asks the operating system whether it saves the wide registers (xgetbv). */
#ifdef DLLM_HAVE_AVX2
#include <cpuid.h>
#include <stdatomic.h>

static const dllm_ops avx2_ops = {DLLM_OPS(ENTRY, avx2)};

/* f16c by hand: not every compiler's builtin knows its name. Asked once: in a virtual machine every cpuid is
 * a trap of tens of microseconds. */
static int has_f16c(void) {
    static atomic_int known; /* 0 before the first call, then 1 + the answer */
    if (!atomic_load_explicit(&known, memory_order_relaxed)) {
        unsigned a, b, c, d;
        int answer = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
        atomic_store_explicit(&known, 1 + answer, memory_order_relaxed);
    }
    return atomic_load_explicit(&known, memory_order_relaxed) - 1;
}

static int has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif

#ifdef DLLM_HAVE_AVXVNNI
#ifdef DLLM_EVEX
/* A build for tests: the row's kernels are encoded for AVX-512. */
static int has_avxvnni(void) {
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#else
static int has_avxvnni(void) {
    return has_avx2() && dllm_has_cpuid_7_1(DLLM_AVXVNNI_BIT);
}
#endif
#endif

#ifdef DLLM_HAVE_AVX512VNNI
static const dllm_ops avx512vnni_ops = {DLLM_OPS(ENTRY, avx512vnni)};

static int has_avx512vnni(void) {
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

static const dllm_row rows[] = {
#ifdef DLLM_HAVE_AVX512VNNI
    {.name = "avx512vnni",
     .supported = has_avx512vnni,
     .gemm = {&dllm_f32_gemm_14x32c1__avx512vnni, &dllm_qd8_f32_qc8w_gemm_14x32c4__avx512vnni,
              &dllm_qd8_f32_qb8w_gemm_7x32c4__avx512vnni, &dllm_qd8_f32_qb4w_gemm_7x32c8__avx512vnni,
              &dllm_bf16_f32_gemm_14x32c2__avx512vnni},
     .ops = &avx512vnni_ops},
#endif
#ifdef DLLM_HAVE_AVXVNNI
    {.name = "avxvnni",
     .supported = has_avxvnni,
     .gemm = {&dllm_f32_gemm_6x16c1__avx2, &dllm_qd8_f32_qb8w_gemm_6x16c4__avxvnni,
              &dllm_qd8_f32_qb8w_gemm_6x16c4__avxvnni, &dllm_qd8_f32_qb4w_gemm_6x16c8__avxvnni,
              &dllm_bf16_f32_gemm_6x16c2__avx2},
     .ops = &avx2_ops},
#endif
#ifdef DLLM_HAVE_AVX2
    {.name = "avx2",
     .supported = has_avx2,
     .gemm = {&dllm_f32_gemm_6x16c1__avx2, &dllm_qd8_f32_qb8w_gemm_6x16c2__avx2,
              &dllm_qd8_f32_qb8w_gemm_6x16c2__avx2, &dllm_qd8_f32_qb4w_gemm_6x16c8__avx2,
              &dllm_bf16_f32_gemm_6x16c2__avx2},
     .ops = &avx2_ops},
#endif
#ifdef DLLM_HAVE_NEONI8MM
    {.name = "neoni8mm",
     .supported = dllm_has_neoni8mm,
     .gemm = {&dllm_f32_gemm_6x16c1__neon, &dllm_qd8_f32_qb8w_gemm_8x8c8__neoni8mm,
              &dllm_qd8_f32_qb8w_gemm_8x8c8__neoni8mm, &dllm_qd8_f32_qb4w_gemm_8x8c16__neoni8mm,
              &dllm_bf16_f32_gemm_8x8c4__neoni8mm},
     .ops = &scalar_ops},
#endif
#ifdef DLLM_HAVE_NEONDOT
    {.name = "neondot",
     .supported = dllm_has_neondot,
     .gemm = {&dllm_f32_gemm_6x16c1__neon, &dllm_qd8_f32_qb8w_gemm_6x16c4__neondot,
              &dllm_qd8_f32_qb8w_gemm_6x16c4__neondot, &dllm_qd8_f32_qb4w_gemm_6x16c8__neondot,
              &dllm_bf16_f32_gemm_6x16c1__neon},
     .ops = &scalar_ops},
#endif
#ifdef DLLM_HAVE_NEON
    {.name = "neon",
     .supported = always,
     .gemm = {&dllm_f32_gemm_6x16c1__neon, &dllm_qd8_f32_qb8w_gemm_4x16c2__neon,
              &dllm_qd8_f32_qb8w_gemm_4x16c2__neon, &dllm_qd8_f32_qb4w_gemm_4x16c4__neon,
              &dllm_bf16_f32_gemm_6x16c1__neon},
     .ops = &scalar_ops},
#endif
    {.name = "scalar",
     .supported = always,
     .gemm = {&dllm_f32_gemm_4x8c1__scalar, &dllm_qd8_f32_qb8w_gemm_4x8c1__scalar,
              &dllm_qd8_f32_qb8w_gemm_4x8c1__scalar, &dllm_qd8_f32_qb4w_gemm_4x8c2__scalar,
              &dllm_bf16_f32_gemm_4x8c1__scalar},
     .ops = &scalar_ops},
};

enum { ROWS = sizeof rows / sizeof *rows };

int dllm_row_count(void) {
    return ROWS;
}

const char *dllm_row_name(int row) {
    return row >= 0 && row < ROWS ? rows[row].name : NULL;
}

int dllm_row_supported(int row) {
    return row >= 0 && row < ROWS && rows[row].supported();
}

const dllm_row *dllm_get_row(int row) {
    return dllm_row_supported(row) ? &rows[row] : NULL;
}
