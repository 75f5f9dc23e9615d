/* Measures the machine: instruction throughput and memory reads on the same pool that runs the kernels. */
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "peak.h"
#include "pool.h"

static const dllm_limits *const all_limits[] = {
#ifdef DLLM_HAVE_AVX512VNNI
    &dllm_limits__avx512vnni,
#endif
#ifdef DLLM_HAVE_AVXVNNI
    &dllm_limits__avxvnni,
#endif
#ifdef DLLM_HAVE_AVX2
    &dllm_limits__avx2,
#endif
#ifdef DLLM_HAVE_NEONI8MM
    &dllm_limits__neoni8mm,
#endif
#ifdef DLLM_HAVE_NEONDOT
    &dllm_limits__neondot,
#endif
#ifdef DLLM_HAVE_NEON
    &dllm_limits__neon,
#endif
    NULL,
};

static const dllm_limits *limits_of(int row) {
    const char *name = dllm_get_row(row) ? dllm_row_name(row) : "";
    for (int i = 0; all_limits[i]; i++)
        if (strcmp(all_limits[i]->row, name) == 0)
            return all_limits[i];
    return NULL;
}

static const dllm_limit *limit_of(int row, int kind) {
    const dllm_limits *limits = limits_of(row);
    if (!limits || kind < DLLM_PEAK_INT8 || kind > DLLM_PEAK_INT4)
        return NULL;
    const dllm_limit *limit = &limits->limit[kind];
    return limit->instruction && (!limit->supported || limit->supported()) ? limit : NULL;
}

const char *dllm_peak_instruction(int row, int kind) {
    const dllm_limit *limit = limit_of(row, kind);
    return limit ? limit->instruction : NULL;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void compute(void *arg, int64_t item, int worker) {
    const dllm_limit *limit = arg;
    (void)item, (void)worker;
    limit->rounds(PEAK_ROUNDS);
}

double dllm_peak(int row, int threads, int kind, int64_t items) {
    const dllm_limit *limit = limit_of(row, kind);
    if (!limit || items < 1)
        return 0;
    double start = seconds();
    dllm_parallel(threads, items, compute, (void *)limit);
    return (double)(items * PEAK_ROUNDS * limit->operations) / (seconds() - start);
}

enum { READ_PIECE = 1 << 20 };

typedef struct {
    void (*read)(const void *from, int64_t bytes);
    const char *buffer;
} read_job;

static void read_piece(void *arg, int64_t item, int worker) {
    const read_job *job = arg;
    (void)worker;
    job->read(job->buffer + item * READ_PIECE, READ_PIECE);
}

static void read_words(const void *from, int64_t bytes) {
    const uint64_t *at = from;
    uint64_t sum = 0;
    for (int64_t i = 0; i < bytes / 8; i++)
        sum ^= at[i];
    __asm__ volatile("" ::"r"(sum));
}

double dllm_peak_read(int row, int threads, const void *buffer, int64_t bytes) {
    const dllm_limits *limits = limits_of(row);
    read_job job = {limits ? limits->read : read_words, buffer};
    int64_t pieces = bytes / READ_PIECE;
    double start = seconds();
    if (pieces < 1)
        return 0;
    dllm_parallel(threads, pieces, read_piece, &job);
    return (double)(pieces * READ_PIECE) / (seconds() - start);
}

enum { ROUND_TRIPS = 2000, END = INT_MAX };
static const double PATIENCE = 0.01; /* seconds */

/* Two counters, each in a line of its own, that two threads raise in turn. */
typedef struct {
    _Alignas(128) atomic_int there;
    _Alignas(128) atomic_int back;
    _Alignas(128) atomic_int meeting;
    double seconds;
} handover;

enum { NOBODY, ONE, BOTH, GIVEN_UP };

/* Whether the other thread has come too. Whoever comes first does not wait for ever. */
static int meet(handover *h) {
    int found = NOBODY;
    double end = seconds() + PATIENCE;
    if (!atomic_compare_exchange_strong(&h->meeting, &found, ONE))
        return found == ONE && atomic_compare_exchange_strong(&h->meeting, &found, BOTH);
    while (atomic_load(&h->meeting) == ONE) {
        found = ONE;
        if (seconds() > end)
            atomic_compare_exchange_strong(&h->meeting, &found, GIVEN_UP);
        DLLM_PAUSE();
    }
    return atomic_load(&h->meeting) == BOTH;
}

/* The first thread counts, the other answers until it hears END. */
static void hand_over(void *arg, int64_t item, int worker) {
    handover *h = arg;
    int trips = 0;
    (void)worker;
    if (!meet(h))
        return;
    if (item != 0) {
        while (trips != END) {
            while (atomic_load(&h->there) <= trips)
                continue; /* a pause would be measured too */
            trips = atomic_load(&h->there);
            atomic_store(&h->back, trips);
        }
        return;
    }
    double start = seconds(), now = start;
    while (trips < ROUND_TRIPS && now - start < PATIENCE) { /* two threads on one core are slow */
        for (int i = 0; i < 20; i++) {
            atomic_store(&h->there, ++trips);
            while (atomic_load(&h->back) < trips)
                continue;
        }
        now = seconds();
    }
    h->seconds = (now - start) / trips;
    atomic_store(&h->there, END);
}

double dllm_peak_handover(void) {
    handover h = {.seconds = 0};
    dllm_parallel(2, 2, hand_over, &h);
    return h.seconds;
}
