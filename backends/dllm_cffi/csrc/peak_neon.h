/* Limits that the NEON rows share. */
#ifndef DLLM_PEAK_NEON_H
#define DLLM_PEAK_NEON_H

#include <arm_neon.h>

#include "peak.h"

#define ZERO vdupq_n_s32(0)
#define ZERO_S8 vdupq_n_s8(0)
#define ZERO_F32 vdupq_n_f32(0)
#define LOAD(at) vld1q_s32((const int32_t *)(at))

DLLM_REPEAT(f32, , float32x4_t, float32x4_t, ZERO_F32, ZERO_F32, vfmaq_f32)
DLLM_READ(read_vectors, int32x4_t, ZERO, LOAD, veorq_s32)

/* vfmaq_f32: 4 products and 4 sums. */
#define LIMIT_F32 {"fmla 4s", PEAK_CHAINS * 8, f32, NULL}

#endif
