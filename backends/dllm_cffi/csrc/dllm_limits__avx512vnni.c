/* Limits of the AVX512-VNNI row. vpdpbusd: 64 products and 64 sums; vdpbf16ps: 32 and 32; vfmadd: 16 and 16.
 */
#include <immintrin.h>

#include "peak.h"

#define ZERO _mm512_setzero_si512()
#define ZERO_PS _mm512_setzero_ps()
#define FMA(sum, a, b) _mm512_fmadd_ps(a, b, sum)

DLLM_REPEAT(int8, , __m512i, __m512i, ZERO, ZERO, _mm512_dpbusd_epi32)
DLLM_REPEAT(f32, , __m512, __m512, ZERO_PS, ZERO_PS, FMA)
DLLM_READ(read_vectors, __m512i, ZERO, _mm512_loadu_si512, _mm512_xor_si512)

#if __has_include(<avx512bf16intrin.h>)
DLLM_REPEAT(bf16, __attribute__((target("avx512bf16"))), __m512, __m512bh, ZERO_PS, (__m512bh)ZERO_PS,
            _mm512_dpbf16_ps)

static int has_bf16(void) {
    return dllm_has_cpuid_7_1(DLLM_AVX512BF16_BIT);
}
#define BF16 {"vdpbf16ps zmm", PEAK_CHAINS * 64, bf16, has_bf16}
#else
#define BF16 {0}
#endif

const dllm_limits dllm_limits__avx512vnni = {
    .row = "avx512vnni",
    .limit = {{"vpdpbusd zmm", PEAK_CHAINS * 128, int8, NULL},
              BF16,
              {"vfmadd231ps zmm", PEAK_CHAINS * 32, f32, NULL}},
    .read = read_vectors,
};
