/* Operators that treat each row by itself: norm, SwiGLU, dynamic quantisation, and the fusions of these.
 *
 * Contract: ops.h. Layout: rows of `width` floats, `stride` apart; codes int8 row-major; one scale a row.
 *
 * Quantisation is dllm_core.quant.quantise_rows (or ..._4bit) bit for bit. The magnitude is the integer
 * maximum of the bit patterns of |x|, which order like the numbers and put inf and NaN on top. Rounding is
 * one addition: the low byte of x * inverse + 1.5 * 2^23 is the code, half to even. |x * inverse| cannot
 * reach 127.5, so no clip.
 *
 * Why it is fast: two passes over a row that stays in L1 (three when fused, through one row of scratch), all
 * in full vectors; memory bound beyond that. Sums of squares run in double: the norm is then correct to the
 * last bit or so whatever the width.
 */
#include "ops.h"
#include "ops_math.h"

#define TINY 0x1p-100f
#define QMAX 127.0f
#define STEPS 8.4f
#define LANES 32

void DLLM_OP(exp)(const float *x, int64_t begin, int64_t end, float *out) {
    for (int64_t i = begin; i < end; i += VL) {
        vec_store_n(out + i, vec_exp(vec_load_n(x + i, end - i, 0)), end - i);
    }
}

void DLLM_OP(add)(float *x, const float *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += VL) {
        vec_store_n(x + i, vec_load_n(x + i, end - i, 0) + vec_load_n(y + i, end - i, 0), end - i);
    }
}

/* By integers: vcvtneps2bf16 would flush denormals. Plain, because gcc makes vectors of it. */
void DLLM_OP(round_bf16)(const float *restrict x, int64_t begin, int64_t end, uint16_t *restrict out) {
    for (int64_t i = begin; i < end; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        const int nan = (int32_t)(bits & 0x7fffffff) > 0x7f800000;
        out[i] = (uint16_t)((nan ? bits | 0x400000 : rounded) >> 16);
    }
}

static int32_t bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* max |x| of a row as the bit pattern of a float; above that of infinity if the row holds NaN. Several
 * chains, because each maximum waits for the one before. */
static int32_t magnitude(const float *x, int64_t width) {
    enum { CHAINS = 4 };
    ivec most[CHAINS] = {{0}};
    int64_t i = 0;
    for (; i + CHAINS * VL <= width; i += CHAINS * VL) {
        UNROLL for (int c = 0; c < CHAINS; c++) {
            most[c] = ivec_max((ivec)vec_load(x + i + c * VL) & 0x7fffffff, most[c]);
        }
    }
    for (; i < width; i += VL)
        most[0] = ivec_max((ivec)vec_load_n(x + i, width - i, 0) & 0x7fffffff, most[0]);
    most[0] = ivec_max(ivec_max(most[0], most[1]), ivec_max(most[2], most[3]));
    int32_t lanes[VL], top = 0;
    memcpy(lanes, &most[0], sizeof lanes);
    for (int lane = 0; lane < VL; lane++)
        top = lanes[lane] > top ? lanes[lane] : top;
    return top;
}

static void quantise_row(const float *restrict x, int64_t width, int8_t *restrict codes, float *scale) {
    const int32_t bits = magnitude(x, width);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    if (bits >= bits_of(INFINITY) || amax < TINY) {
        memset(codes, 0, (size_t)width);
        *scale = bits >= bits_of(INFINITY) ? NAN : 0.0f;
        return;
    }
    *scale = amax / QMAX;
    const float inverse = QMAX / amax;
    for (int64_t i = 0; i < width; i++) { /* plain, because gcc packs bytes better than it converts vectors */
        const float rounded = x[i] * inverse + ROUNDING;
        codes[i] = (int8_t)bits_of(rounded);
    }
}

void DLLM_OP(quantise_rows)(const float *x, int64_t x_stride, int64_t width, int64_t begin, int64_t end,
                            int8_t *codes, int64_t codes_stride, float *scale) {
    for (int64_t row = begin; row < end; row++) {
        quantise_row(x + row * x_stride, width, codes + row * codes_stride, scale + row);
    }
}

/* Code -8 for the value of largest magnitude, the positive one where both signs have it. */
static void quantise_row_4bit(const float *restrict x, int64_t width, int8_t *restrict codes, float *scale) {
    const int32_t bits = magnitude(x, width);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    if (bits >= bits_of(INFINITY) || amax < TINY) {
        memset(codes, 0, (size_t)width);
        *scale = bits >= bits_of(INFINITY) ? NAN : 0.0f;
        return;
    }
    int positive = 0;
    for (int64_t i = 0; i < width; i++)
        positive |= x[i] == amax;
    const float extreme = positive ? amax : -amax, inverse = -STEPS / extreme;
    *scale = extreme / -STEPS;
    for (int64_t i = 0; i < width; i++) { /* as above; -8.4 rounds to -8, 8.4 needs the cut */
        const float scaled = x[i] * inverse;
        codes[i] = (int8_t)bits_of((scaled < 7.0f ? scaled : 7.0f) + ROUNDING);
    }
}

void DLLM_OP(quantise_rows_4bit)(const float *x, int64_t x_stride, int64_t width, int64_t begin, int64_t end,
                                 int8_t *codes, int64_t codes_stride, float *scale) {
    for (int64_t row = begin; row < end; row++) {
        quantise_row_4bit(x + row * x_stride, width, codes + row * codes_stride, scale + row);
    }
}

/* In double, where squares are exact, and in LANES partial sums on every ISA, so that all ISAs agree on the
 * norm bit for bit. */
static double sum_of_squares(const float *x, int64_t width) {
    enum { WIDE = VL / 2, VECTORS = LANES / WIDE };
    dvec sum[VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        UNROLL for (int v = 0; v < VECTORS; v++) {
            const dvec wide = vec_load_double(x + i + v * WIDE);
            sum[v] += wide * wide;
        }
    }
    double lanes[LANES], total = 0;
    memcpy(lanes, sum, sizeof lanes);
    for (int lane = 0; lane < width - i; lane++)
        lanes[lane] += (double)x[i + lane] * x[i + lane];
    for (int lane = 0; lane < LANES; lane++)
        total += lanes[lane];
    return total;
}

static void rms_norm_row(const float *x, const float *weight, float eps, int64_t width, float *out) {
    const float mean_square = (float)(sum_of_squares(x, width) / (double)width);
    const vec inverse = vec_set1(1.0f / sqrtf(mean_square + eps));
    for (int64_t i = 0; i < width; i += VL) {
        const vec normed = vec_load_n(x + i, width - i, 0) * inverse;
        vec_store_n(out + i, normed * vec_load_n(weight + i, width - i, 0), width - i);
    }
}

void DLLM_OP(rms_norm)(const float *x, int64_t x_stride, const float *weight, float eps, int64_t width,
                       int64_t begin, int64_t end, float *out, int64_t out_stride) {
    for (int64_t row = begin; row < end; row++) {
        rms_norm_row(x + row * x_stride, weight, eps, width, out + row * out_stride);
    }
}

void DLLM_OP(rms_norm_quantise)(const float *x, int64_t x_stride, const float *weight, float eps,
                                int64_t width, int64_t begin, int64_t end, int8_t *codes,
                                int64_t codes_stride, float *scale, float *scratch) {
    for (int64_t row = begin; row < end; row++) {
        rms_norm_row(x + row * x_stride, weight, eps, width, scratch);
        quantise_row(scratch, width, codes + row * codes_stride, scale + row);
    }
}

static void swiglu_row(const float *gate_up, int64_t width, float *out) {
    const float *up = gate_up + width;
    for (int64_t i = 0; i < width; i += VL) {
        const vec gate = vec_load_n(gate_up + i, width - i, 0);
        const vec silu = gate / (vec_set1(1.0f) + vec_exp(-gate));
        vec_store_n(out + i, silu * vec_load_n(up + i, width - i, 0), width - i);
    }
}

void DLLM_OP(swiglu)(const float *gate_up, int64_t stride, int64_t width, int64_t begin, int64_t end,
                     float *out, int64_t out_stride) {
    for (int64_t row = begin; row < end; row++) {
        swiglu_row(gate_up + row * stride, width, out + row * out_stride);
    }
}

void DLLM_OP(swiglu_quantise)(const float *gate_up, int64_t stride, int64_t width, int64_t begin, int64_t end,
                              int8_t *codes, int64_t codes_stride, float *scale, float *scratch) {
    for (int64_t row = begin; row < end; row++) {
        swiglu_row(gate_up + row * stride, width, scratch);
        quantise_row(scratch, width, codes + row * codes_stride, scale + row);
    }
}
