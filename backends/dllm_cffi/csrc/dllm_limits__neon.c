/* Limits of the NEON row. Exact int8 goes through 16 bit: smull and smlal have 8 products each and 8 sums
 * between them, sadalp another 8. */
#include "peak_neon.h"

#define MADD(sum, a, b) vpadalq_s16(sum, vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), a, b))

DLLM_REPEAT(int8, , int32x4_t, int8x16_t, ZERO, ZERO_S8, MADD)

const dllm_limits dllm_limits__neon = {
    .row = "neon",
    .limit = {{"smull + smlal + sadalp", PEAK_CHAINS * 32, int8, NULL}, {0}, LIMIT_F32},
    .read = read_vectors,
};
