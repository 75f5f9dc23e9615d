/* The most that an instruction set can do: throughput of the instructions its kernels are made of. Internal.
 */
#ifndef DLLM_PEAK_LIMITS_H
#define DLLM_PEAK_LIMITS_H

#include "row.h"

enum {
    PEAK_CHAINS = 12,   /* independent sums: more than latency times instructions a cycle */
    PEAK_ROUNDS = 8192, /* per piece of work: some tens of microseconds */
};

typedef struct {
    const char *instruction; /* NULL: the row computes nothing of this kind */
    int64_t operations;      /* of one round: a multiply and an add count one each */
    void (*rounds)(int64_t count);
    int (*supported)(void); /* NULL: wherever the row is */
} dllm_limit;

typedef struct {
    const char *row;
    dllm_limit limit[3]; /* DLLM_PEAK_INT8, DLLM_PEAK_BF16, DLLM_PEAK_F32 */
    void (*read)(const void *from, int64_t bytes);
} dllm_limits;

extern const dllm_limits dllm_limits__avx2, dllm_limits__avx512vnni;

/* A function that repeats `instruction`(sum, a, b) on PEAK_CHAINS sums. The empty assembly makes the operands
 * unknown before every instruction: else equal ones would be computed once. */
#define DLLM_REPEAT(name, attributes, sum_type, type, zero_sum, zero, instruction)                           \
    attributes static void name(int64_t count) {                                                             \
        sum_type sum[PEAK_CHAINS];                                                                           \
        type a = zero, b = zero;                                                                             \
        _Pragma("GCC unroll 12") for (int i = 0; i < PEAK_CHAINS; i++) sum[i] = zero_sum;                    \
        while (count-- > 0)                                                                                  \
            _Pragma("GCC unroll 12") for (int i = 0; i < PEAK_CHAINS; i++) {                                 \
                __asm__ volatile("" : "+v"(a), "+v"(b));                                                     \
                sum[i] = instruction(sum[i], a, b);                                                          \
            }                                                                                                \
        _Pragma("GCC unroll 12") for (int i = 0; i < PEAK_CHAINS; i++) __asm__ volatile("" ::"v"(sum[i]));   \
    }

/* Reads whole vectors, four at a time. */
#define DLLM_READ(name, type, zero, load, combine)                                                           \
    static void name(const void *from, int64_t bytes) {                                                      \
        const type *at = from, *end = at + bytes / (int64_t)sizeof(type) / 4 * 4;                            \
        type sum[4] = {zero, zero, zero, zero};                                                              \
        for (; at < end; at += 4)                                                                            \
            for (int i = 0; i < 4; i++)                                                                      \
                sum[i] = combine(sum[i], load(at + i));                                                      \
        for (int i = 0; i < 4; i++)                                                                          \
            __asm__ volatile("" ::"v"(sum[i]));                                                              \
    }

#endif
