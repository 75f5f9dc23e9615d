/* What an aarch64 CPU has beyond NEON, as the operating system reports it: the CPU's own registers may not be
 * read by a program. */
#include "row.h"

#if defined(__linux__)
#include <sys/auxv.h>

/* Bits of the kernel's interface, which older headers lack. */
enum { HAS_DOTPROD = 1 << 20, HAS_I8MM = 1 << 13, HAS_BF16 = 1 << 14 };

int dllm_has_neondot(void) {
    return (getauxval(AT_HWCAP) & HAS_DOTPROD) != 0;
}

int dllm_has_neoni8mm(void) {
    return dllm_has_neondot() && (~getauxval(AT_HWCAP2) & (HAS_I8MM | HAS_BF16)) == 0;
}

#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has(const char *feature) {
    int answer = 0;
    size_t bytes = sizeof answer;
    return sysctlbyname(feature, &answer, &bytes, NULL, 0) == 0 && answer != 0;
}

int dllm_has_neondot(void) {
    return has("hw.optional.arm.FEAT_DotProd");
}

int dllm_has_neoni8mm(void) {
    return dllm_has_neondot() && has("hw.optional.arm.FEAT_I8MM") && has("hw.optional.arm.FEAT_BF16");
}

#else /* nobody to ask: the row `neon` runs everywhere */

int dllm_has_neondot(void) {
    return 0;
}

int dllm_has_neoni8mm(void) {
    return 0;
}

#endif
