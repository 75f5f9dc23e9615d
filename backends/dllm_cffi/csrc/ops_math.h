/* One float vector type, as wide as the ISA this file is compiled for, and the little arithmetic on it.
 *
 * Kernels are written once with gcc vector types (a + b, a * b, comparisons give lanes of 0 or -1); what the
 * operators cannot say (fused multiply-add, max, masked tails, broadcast) is here, by intrinsics where they
 * exist and in plain C elsewhere. Nothing depends on the compiler finding a vectorisation, and a multiply is
 * fused with an add only where vec_fma stands (files are compiled with -ffp-contract=off).
 *
 * Tails: vec_load_n and vec_store_n touch only the n elements that exist, so a loop needs no second body.
 */
#ifndef DLLM_OPS_MATH_H
#define DLLM_OPS_MATH_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "unroll.h"

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX2__) && defined(__FMA__)
#define VL 8
#else
#define VL 4
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef float vec __attribute__((vector_size(4 * VL)));
typedef int32_t ivec __attribute__((vector_size(4 * VL)));
typedef double dvec __attribute__((vector_size(4 * VL))); /* half as many lanes */
typedef float vec_unaligned __attribute__((vector_size(4 * VL), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))

#if VL == 16
#define VEC_ALL(F, s)                                                                                        \
    F(0, s), F(1, s), F(2, s), F(3, s), F(4, s), F(5, s), F(6, s), F(7, s), F(8, s), F(9, s), F(10, s),      \
        F(11, s), F(12, s), F(13, s), F(14, s), F(15, s)
#elif VL == 8
#define VEC_ALL(F, s) F(0, s), F(1, s), F(2, s), F(3, s), F(4, s), F(5, s), F(6, s), F(7, s)
#else
#define VEC_ALL(F, s) F(0, s), F(1, s), F(2, s), F(3, s)
#endif
#define VEC_SAME(lane, s) (s)
#define VEC_LANE(lane, s) (lane)

/* Lanes of a, then of b, in the order F(lane, s) gives for literal s. */
#if defined(__clang__)
#define VEC_SHUFFLE(a, b, F, s) __builtin_shufflevector(a, b, VEC_ALL(F, s))
#else
#define VEC_SHUFFLE(a, b, F, s) __builtin_shuffle(a, b, (ivec){VEC_ALL(F, s)})
#endif

INLINE vec vec_set1(float x) {
    return (vec){VEC_ALL(VEC_SAME, x)};
}

INLINE vec vec_load(const float *p) {
    return *(const vec_unaligned *)p;
}

INLINE void vec_store(float *p, vec x) {
    *(vec_unaligned *)p = x;
}

/* The first n elements (any n >= 1) of p; the lanes behind them hold `fill`. */
INLINE vec vec_load_n(const float *p, int64_t n, float fill) {
    if (n >= VL)
        return vec_load(p);
#if VL == 16
    return (vec)_mm512_mask_loadu_ps((__m512)vec_set1(fill), (__mmask16)((1u << n) - 1), p);
#else
    vec x = vec_set1(fill);
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}

INLINE void vec_store_n(float *p, vec x, int64_t n) {
    if (n >= VL) {
        vec_store(p, x);
        return;
    }
#if VL == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}

/* a * b + c, rounded once where the ISA can. */
INLINE vec vec_fma(vec a, vec b, vec c) {
#if VL == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* The VL / 2 floats at p. gcc 12 converts vectors piece by piece where no intrinsic says otherwise. */
INLINE dvec vec_load_double(const float *p) {
#if VL == 16
    return (dvec)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif VL == 8
    return (dvec)_mm256_cvtps_pd(_mm_loadu_ps(p));
#elif defined(__aarch64__)
    return (dvec)vcvt_f64_f32(vld1_f32(p));
#else
    return (dvec){p[0], p[1]};
#endif
}

INLINE ivec ivec_select(ivec mask, ivec a, ivec b) {
    return (mask & a) | (~mask & b);
}

INLINE ivec ivec_max(ivec a, ivec b) {
#if VL == 16
    return (ivec)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif VL == 8
    return (ivec)_mm256_max_epi32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (ivec)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
#else
    return ivec_select(a > b, a, b);
#endif
}

/* a > b ? a : b in every lane: b where one of them is NaN. */
INLINE vec vec_max(vec a, vec b) {
#if VL == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return (vec)ivec_select(a > b, (ivec)a, (ivec)b);
#endif
}

/* a < b ? a : b in every lane: b where one of them is NaN. */
INLINE vec vec_min(vec a, vec b) {
#if VL == 16
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (vec)_mm_min_ps((__m128)a, (__m128)b);
#else
    return (vec)ivec_select(a < b, (ivec)a, (ivec)b);
#endif
}

/* Adding this rounds |x| < 2^22 to the nearest integer, ties to even; the sum's low bits are that integer. */
#define ROUNDING 12582912.0f /* 1.5 * 2^23 */

/* Where exp(x) is 0 after rounding, and where it is infinite. */
#define EXP_LOW (-104.0f)
#define EXP_HIGH 89.0f

/* e^x to 1.01 ulp (every float tried), subnormal results included; 1 at 0, 0 at -inf, inf from 88.73, NaN at
 * NaN.
 *
 * x = n ln 2 + r with |r| <= ln(2) / 2. ln 2 is split so that n times its upper part is exact with or without
 * FMA. e^r = 1 + (r + r^2 p(r)): p is the degree 4 polynomial of least relative error of e^r (4e-9). */
INLINE vec vec_exp(vec x) {
    x = vec_max(vec_set1(EXP_LOW), vec_min(vec_set1(EXP_HIGH), x));
    const vec shifted = vec_fma(x, vec_set1(1.44269504f), vec_set1(ROUNDING));
    const vec n = shifted - vec_set1(ROUNDING);
    vec r = vec_fma(n, vec_set1(-355.0f / 512), x);
    r = vec_fma(n, vec_set1(2.12194440e-4f), r);
    vec p = vec_set1(0x1.6a23d0p-10f);
    p = vec_fma(p, r, vec_set1(0x1.123a20p-7f));
    p = vec_fma(p, r, vec_set1(0x1.5558f2p-5f));
    p = vec_fma(p, r, vec_set1(0x1.555492p-3f));
    p = vec_fma(p, r, vec_set1(0x1.fffffcp-2f));
    const vec y = vec_set1(1.0f) + vec_fma(r * r, p, r);
#if VL == 16
    return (vec)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    /* 2^n in two factors, so that neither leaves the exponent's range; only the last product rounds */
    const ivec whole = (ivec)shifted - (ivec)vec_set1(ROUNDING);
    const ivec half = whole >> 1;
    return y * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
#endif
}

#endif
