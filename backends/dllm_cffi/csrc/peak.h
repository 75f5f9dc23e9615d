/* The most that an instruction set can do: throughput of the instructions its kernels are made of. Internal.
 */
#ifndef DLLM_PEAK_LIMITS_H
#define DLLM_PEAK_LIMITS_H

#include "row.h"
#include "unroll.h"

/* PEAK_CHAINS: independent sums, more than latency times instructions a cycle. IN_VECTOR: the constraint of a
 * vector register in assembly. */
#if defined(__aarch64__)
enum { PEAK_CHAINS = 20 };
#define IN_VECTOR "w"
#else
enum { PEAK_CHAINS = 12 };
#define IN_VECTOR "v"
#endif
#define EVERY_CHAIN UNROLL for (int i = 0; i < PEAK_CHAINS; i++)

enum { PEAK_ROUNDS = 8192 }; /* per piece of work: some tens of microseconds */

typedef struct {
    const char *instruction; /* NULL: the row computes nothing of this kind */
    int64_t operations;      /* of one round: a multiply and an add count one each */
    void (*rounds)(int64_t count);
    int (*supported)(void); /* NULL: wherever the row is */
} dllm_limit;

typedef struct {
    const char *row;
    dllm_limit limit[4]; /* by DLLM_PEAK_INT8, ... */
    void (*read)(const void *from, int64_t bytes);
} dllm_limits;

extern const dllm_limits dllm_limits__avx2, dllm_limits__avxvnni, dllm_limits__avx512vnni;
extern const dllm_limits dllm_limits__neon, dllm_limits__neondot, dllm_limits__neoni8mm;

/* A function that repeats `instruction`(sum, a, b) on PEAK_CHAINS sums. The empty assembly makes the operands
 * unknown before every instruction: else equal ones would be computed once. */
#define DLLM_REPEAT(name, attributes, sum_type, type, zero_sum, zero, instruction)                           \
    attributes static void name(int64_t count) {                                                             \
        sum_type sum[PEAK_CHAINS];                                                                           \
        type a = zero, b = zero;                                                                             \
        EVERY_CHAIN sum[i] = zero_sum;                                                                       \
        while (count-- > 0)                                                                                  \
            EVERY_CHAIN {                                                                                    \
                __asm__ volatile("" : "+" IN_VECTOR(a), "+" IN_VECTOR(b));                                   \
                sum[i] = instruction(sum[i], a, b);                                                          \
            }                                                                                                \
        EVERY_CHAIN __asm__ volatile("" ::IN_VECTOR(sum[i]));                                                \
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
            __asm__ volatile("" ::IN_VECTOR(sum[i]));                                                        \
    }

#endif
