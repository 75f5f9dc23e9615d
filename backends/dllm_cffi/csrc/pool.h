/* The thread pool. */
#ifndef DLLM_POOL_H
#define DLLM_POOL_H

#include <stdint.h>

#include "dllm.h"

/* Runs body(arg, item, worker) for every item in 0..items-1, each once, on up to `threads` threads: the
 * caller is worker 0. Items are taken one by one in order, so threads finish together whatever their speed.
 * Returns when all have ended. Called inside a body, or while another thread uses the pool, it runs all items
 * itself. */
void dllm_parallel(int threads, int64_t items, void (*body)(void *arg, int64_t item, int worker), void *arg);

#endif
