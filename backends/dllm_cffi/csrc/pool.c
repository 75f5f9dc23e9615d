/* A pool of threads that takes work item by item.
 *
 * One job at a time. `gate` is the whole protocol: its OPEN bit says that the job may be joined, the rest
 * counts the workers inside. A worker that comes late finds the gate closed and goes back to waiting, so the
 * caller never waits for a thread that the system has not scheduled, only for items that are being worked on.
 * The job's fields change only while the gate is closed and nobody is inside.
 *
 * Waiting, on both sides, is a short spin and then sleep: a spin answers in well under a microsecond, a
 * sleeper leaves the core to whoever needs it. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "pool.h"

enum { SPIN_NANOSECONDS = 200000, PAUSES_PER_CHECK = 32 };
static const unsigned OPEN = 1u << 31;

static struct {
    pthread_mutex_t submit; /* held for the length of a job */
    pthread_mutex_t sleep;
    pthread_cond_t work, done;
    int workers; /* threads started, guarded by submit */
    atomic_uint epoch;
    atomic_int sleepers, caller_sleeps;
    atomic_uint gate;
    _Atomic int64_t next;
    int threads;
    int64_t items;
    void (*body)(void *, int64_t, int);
    void *arg;
} pool = {.submit = PTHREAD_MUTEX_INITIALIZER,
          .sleep = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins until *word != value; 0 if it still is after SPIN_NANOSECONDS. */
static int spin_while(atomic_uint *word, unsigned value) {
    int64_t end = now() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < PAUSES_PER_CHECK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return 1;
            DLLM_PAUSE();
        }
    } while (now() < end);
    return 0;
}

static void take_items(int worker) {
    int64_t item;
    while ((item = atomic_fetch_add(&pool.next, 1)) < pool.items)
        pool.body(pool.arg, item, worker);
}

static void wait_for_epoch(unsigned seen) {
    if (spin_while(&pool.epoch, seen))
        return;
    pthread_mutex_lock(&pool.sleep);
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.epoch) == seen)
        pthread_cond_wait(&pool.work, &pool.sleep);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
}

static int enter(void) {
    unsigned gate = atomic_load(&pool.gate);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak(&pool.gate, &gate, gate + 1))
            return 1;
    return 0;
}

static void leave(void) {
    if (atomic_fetch_sub(&pool.gate, 1) == 1 && atomic_load(&pool.caller_sleeps)) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_signal(&pool.done);
        pthread_mutex_unlock(&pool.sleep);
    }
}

static void *worker_main(void *id) {
    int worker = (int)(intptr_t)id;
    unsigned seen = 0; /* the pool's first job has epoch 1 */
    for (;;) {
        wait_for_epoch(seen);
        seen = atomic_load(&pool.epoch);
        if (!enter())
            continue;
        if (worker < pool.threads)
            take_items(worker);
        leave();
    }
    return NULL;
}

/* A forked child has none of its parent's threads: it starts afresh. */
static void restart_in_child(void) {
    pthread_mutex_init(&pool.submit, NULL);
    pthread_mutex_init(&pool.sleep, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.workers = 0;
    atomic_store(&pool.epoch, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.caller_sleeps, 0);
    atomic_store(&pool.gate, 0);
}

static void register_restart(void) {
    pthread_atfork(NULL, NULL, restart_in_child);
}

/* Starts missing workers; fewer than asked for is no error, the caller can do all the work. */
static void start_workers(int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_restart);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool.workers < threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, worker_main, (void *)(intptr_t)(pool.workers + 1)) != 0)
            break;
        pool.workers++;
    }
    pthread_attr_destroy(&attributes);
}

static void publish(void) {
    atomic_fetch_add(&pool.epoch, 1);
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_broadcast(&pool.work);
        pthread_mutex_unlock(&pool.sleep);
    }
}

static void wait_until_empty(void) {
    unsigned inside = atomic_fetch_and(&pool.gate, ~OPEN) & ~OPEN;
    while (inside) {
        if (!spin_while(&pool.gate, inside)) {
            pthread_mutex_lock(&pool.sleep);
            atomic_store(&pool.caller_sleeps, 1);
            while (atomic_load(&pool.gate) != 0)
                pthread_cond_wait(&pool.done, &pool.sleep);
            atomic_store(&pool.caller_sleeps, 0);
            pthread_mutex_unlock(&pool.sleep);
        }
        inside = atomic_load(&pool.gate);
    }
}

void dllm_parallel(int threads, int64_t items, void (*body)(void *arg, int64_t item, int worker), void *arg) {
    threads = threads > DLLM_MAX_THREADS ? DLLM_MAX_THREADS : threads;
    threads = threads > items ? (int)items : threads;
    if (threads <= 1 || pthread_mutex_trylock(&pool.submit) != 0) {
        for (int64_t i = 0; i < items; i++)
            body(arg, i, 0);
        return;
    }
    if (pool.workers < threads - 1)
        start_workers(threads);
    pool.threads = threads;
    pool.items = items;
    pool.body = body;
    pool.arg = arg;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.gate, OPEN);
    publish();
    take_items(0);
    wait_until_empty();
    pthread_mutex_unlock(&pool.submit);
}
