/* What x86 CPUs have that not every compiler's __builtin_cpu_supports knows by name. */
#include "row.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#include <stdatomic.h>

/* Asked once: in a virtual machine every cpuid is a trap of tens of microseconds. */
int dllm_has_cpuid_7_1(int bit) {
    static atomic_llong known = -1; /* EAX */
    if (atomic_load_explicit(&known, memory_order_relaxed) < 0) {
        unsigned a = 0, b, c, d;
        int exists =
            __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
        atomic_store_explicit(&known, exists ? a : 0, memory_order_relaxed);
    }
    return atomic_load_explicit(&known, memory_order_relaxed) >> bit & 1;
}
#endif
