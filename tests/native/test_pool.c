/* The thread pool: every item once, whatever the threads, nesting, callers or forks. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "pool.h"

enum { ITEMS = 1000 };

typedef struct {
    atomic_int seen[ITEMS];
    atomic_int workers[DLLM_MAX_THREADS];
    int threads, slow;
} counts;

static void count(void *arg, int64_t item, int worker) {
    counts *c = arg;
    CHECK(worker >= 0 && worker < c->threads, "worker %d of %d", worker, c->threads);
    atomic_fetch_add(&c->seen[item], 1);
    atomic_fetch_add(&c->workers[worker], 1);
    if (c->slow)
        usleep(200);
}

static void run_once(int threads, int64_t items, int slow) {
    counts *c = calloc(1, sizeof *c);
    c->threads = threads < 1 ? 1 : threads;
    c->slow = slow;
    dllm_parallel(threads, items, count, c);
    for (int64_t i = 0; i < ITEMS; i++)
        CHECK(c->seen[i] == (i < items), "item %d of %d ran %d times on %d threads", (int)i, (int)items,
              c->seen[i], threads);
    if (slow && threads > 1)
        CHECK(c->workers[0] < items, "no worker took part in %d slow items", (int)items);
    free(c);
}

static void test_every_item_once(void) {
    const int threads[] = {0, 1, 2, 3, 8};
    for (int t = 0; t < 5; t++)
        for (int64_t items = 0; items <= ITEMS; items = 3 * items + 1)
            for (int repeat = 0; repeat < 20; repeat++)
                run_once(threads[t], items, 0);
    run_once(2, 40, 1);
    usleep(2000); /* long enough for the workers to fall asleep */
    run_once(4, 40, 1);
}

static void nested_body(void *arg, int64_t item, int worker) {
    (void)arg, (void)item, (void)worker;
    run_once(2, 50, 0);
}

static void *other_caller(void *arg) {
    (void)arg;
    for (int i = 0; i < 200; i++)
        run_once(3, 100, 0);
    return NULL;
}

static void test_two_callers(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, other_caller, NULL);
    other_caller(NULL);
    pthread_join(thread, NULL);
}

static void test_fork(void) {
    pid_t child = fork();
    if (child == 0) {
        run_once(2, 40, 1); /* fails if the child still counts on its parent's threads */
        run_once(4, 1000, 0);
        _exit(failures != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the forked child failed");
    run_once(4, 1000, 0);
}

/* Arguments: "no-fork" where an emulator cannot start threads in a forked child. */
int main(int argc, char **argv) {
    test_every_item_once();
    dllm_parallel(2, 20, nested_body, NULL);
    test_two_callers();
    if (argc < 2 || strcmp(argv[1], "no-fork"))
        test_fork();
    printf("pool: %d failures\n", failures);
    return failures != 0;
}
