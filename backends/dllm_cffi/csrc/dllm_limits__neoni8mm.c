/* Limits of the NEON i8mm row. smmla: 2 x 2 sums of 8 products. */
#include "peak_neon.h"

DLLM_REPEAT(int8, , int32x4_t, int8x16_t, ZERO, ZERO_S8, vmmlaq_s32)

const dllm_limits dllm_limits__neoni8mm = {
    .row = "neoni8mm",
    .limit = {{"smmla 16b", PEAK_CHAINS * 64, int8, NULL}, {0}, LIMIT_F32},
    .read = read_vectors,
};
