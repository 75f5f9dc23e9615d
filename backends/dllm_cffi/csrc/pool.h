/* The thread pool. */
#ifndef DLLM_POOL_H
#define DLLM_POOL_H

#include <stdint.h>

#include "dllm.h"

/* Tells the core that it spins. */
#if defined(__x86_64__) || defined(__i386__)
#define DLLM_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define DLLM_PAUSE() __asm__ volatile("yield")
#else
#define DLLM_PAUSE() ((void)0)
#endif

/* Runs body(arg, item, worker) for every item in 0..items-1, each once, on up to `threads` threads: the
 * caller is worker 0. Items are taken one by one in order, so threads finish together whatever their speed.
 * Returns when all have ended. Called inside a body, or while another thread uses the pool, it runs all items
 * itself. */
void dllm_parallel(int threads, int64_t items, void (*body)(void *arg, int64_t item, int worker), void *arg);

#endif
