/* Limits of the NEON i8mm row. smmla: 2 x 2 sums of 8 products; bfmmla: of 4. */
#include "peak_neon.h"

DLLM_REPEAT(int8, , int32x4_t, int8x16_t, ZERO, ZERO_S8, vmmlaq_s32)
DLLM_REPEAT(bf16, , float32x4_t, bfloat16x8_t, ZERO_F32, vreinterpretq_bf16_s8(ZERO_S8), vbfmmlaq_f32)

const dllm_limits dllm_limits__neoni8mm = {
    .row = "neoni8mm",
    .limit = {{"smmla 16b", PEAK_CHAINS * 64, int8, NULL},
              {"bfmmla 8h", PEAK_CHAINS * 32, bf16, NULL},
              LIMIT_F32},
    .read = read_vectors,
};
