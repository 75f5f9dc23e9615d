/* Limits of the AVX-VNNI row. vpdpbusd: 32 products and 32 sums. */
#include "avxvnni.h"
#include "peak.h"

#define ZERO _mm256_setzero_si256()
#define ZERO_PS _mm256_setzero_ps()
#define FMA(sum, a, b) _mm256_fmadd_ps(a, b, sum)

DLLM_REPEAT(int8, , __m256i, __m256i, ZERO, ZERO, dot)
DLLM_REPEAT(f32, , __m256, __m256, ZERO_PS, ZERO_PS, FMA)
DLLM_READ(read_vectors, __m256i, ZERO, _mm256_loadu_si256, _mm256_xor_si256)

const dllm_limits dllm_limits__avxvnni = {
    .row = "avxvnni",
    .limit = {{"vpdpbusd ymm", PEAK_CHAINS * 64, int8, NULL},
              {0},
              {"vfmadd231ps ymm", PEAK_CHAINS * 16, f32, NULL}},
    .read = read_vectors,
};
