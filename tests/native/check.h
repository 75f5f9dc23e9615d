/* What the test programs share: checks that count, exact allocations, random numbers. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition) && failures++ < 20) {                                                               \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                  \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
        }                                                                                                    \
    } while (0)

enum { CANARY = 64 };

/* `bytes` at a multiple of 64 with nothing behind them that may be touched: the address sanitizer watches the
 * end, and so does a canary that `release` checks. */
static inline void *exact(int64_t bytes) {
    void *at = NULL;
    if (posix_memalign(&at, 64, (size_t)(bytes + CANARY)) != 0)
        abort();
    memset(at, 0x7f, (size_t)bytes);
    memset((char *)at + bytes, 0x5a, CANARY);
    return at;
}

static inline void release(void *at, int64_t bytes, const char *what) {
    for (int i = 0; i < CANARY; i++)
        CHECK(((unsigned char *)at)[bytes + i] == 0x5a, "byte %d after %s was written", i, what);
    free(at);
}

static uint64_t state = 88172645463325252u;

static inline uint32_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

/* Uniform in [-1, 1). */
static inline float uniform(void) {
    return (float)((int32_t)draw() / 2147483648.0);
}

static inline float *uniforms(int64_t count) {
    float *x = exact(count * (int64_t)sizeof(float));
    for (int64_t i = 0; i < count; i++)
        x[i] = uniform();
    return x;
}

#define FREE_FLOATS(x, count) release(x, (count) * (int64_t)sizeof(float), #x)

#endif
