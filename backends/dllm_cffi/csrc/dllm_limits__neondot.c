/* Limits of the NEON dotprod row. sdot: 16 products and 16 sums. */
#include "peak_neon.h"

DLLM_REPEAT(int8, , int32x4_t, int8x16_t, ZERO, ZERO_S8, vdotq_s32)

const dllm_limits dllm_limits__neondot = {
    .row = "neondot",
    .limit = {{"sdot 16b", PEAK_CHAINS * 32, int8, NULL}, {0}, LIMIT_F32},
    .read = read_vectors,
};
