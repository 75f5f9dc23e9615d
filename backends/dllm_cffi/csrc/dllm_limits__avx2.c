/* Limits of the AVX2 row. Exact int8 goes through 16 bit: vpmaddwd has 16 products and 8 sums, vpaddd 8 more.
 */
#include <immintrin.h>

#include "peak.h"

#define ZERO _mm256_setzero_si256()
#define ZERO_PS _mm256_setzero_ps()
#define MADD(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define MADD_BYTES(sum, a, b) _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))
#define FMA(sum, a, b) _mm256_fmadd_ps(a, b, sum)
#define XOR(sum, x) _mm256_xor_si256(sum, x)

DLLM_REPEAT(int8, , __m256i, __m256i, ZERO, ZERO, MADD)
DLLM_REPEAT(int4, , __m256i, __m256i, ZERO, ZERO, MADD_BYTES)
DLLM_REPEAT(f32, , __m256, __m256, ZERO_PS, ZERO_PS, FMA)
DLLM_READ(read_vectors, __m256i, ZERO, _mm256_loadu_si256, XOR)

const dllm_limits dllm_limits__avx2 = {
    .row = "avx2",
    .limit = {{"vpmaddwd + vpaddd ymm", PEAK_CHAINS * 32, int8, NULL},
              {0},
              {"vfmadd231ps ymm", PEAK_CHAINS * 16, f32, NULL},
              {"vpmaddubsw + vpaddw ymm", PEAK_CHAINS * 64, int4, NULL}},
    .read = read_vectors,
};
