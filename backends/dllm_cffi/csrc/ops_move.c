/* Operators that move rows: rotary embedding in place, key/value store, embedding gather.
 *
 * Contract: ops.h. Layout: `stride` floats between rows, so that rope and kv_store work inside a fused qkv
 * buffer [rows, (H + 2 G) D].
 *
 * Why it is fast: each touches its data once, in full vectors; all three are bound by memory. rope multiplies
 * and adds unfused, in the order of the reference, and equals it bit for bit.
 */
#include "ops.h"
#include "ops_math.h"

void DLLM_OP(rope)(float *x, int64_t stride, int64_t heads, int64_t head_dim, const float *cos,
                   const float *sin, const int64_t *positions, int64_t begin, int64_t end) {
    const int64_t half = head_dim / 2;
    for (int64_t row = begin; row < end; row++) {
        const float *c_row = cos + positions[row] * half, *s_row = sin + positions[row] * half;
        for (int64_t head = 0; head < heads; head++) {
            float *first = x + row * stride + head * head_dim, *second = first + half;
            for (int64_t j = 0; j < half; j += VL) {
                const int64_t left = half - j;
                const vec a = vec_load_n(first + j, left, 0), b = vec_load_n(second + j, left, 0);
                const vec c = vec_load_n(c_row + j, left, 0), s = vec_load_n(s_row + j, left, 0);
                vec_store_n(first + j, a * c - b * s, left);
                vec_store_n(second + j, b * c + a * s, left);
            }
        }
    }
}

void DLLM_OP(kv_store)(const float *k, const float *v, int64_t stride, int64_t heads, int64_t head_dim,
                       const int64_t *slots, int64_t begin, int64_t end, float *k_store, float *v_store,
                       int64_t slot_stride, int64_t head_stride) {
    const size_t bytes = (size_t)head_dim * sizeof *k;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t head = 0; head < heads; head++) {
            const int64_t from = row * stride + head * head_dim,
                          to = slots[row] * slot_stride + head * head_stride;
            memcpy(k_store + to, k + from, bytes);
            memcpy(v_store + to, v + from, bytes);
        }
    }
}

/* bfloat16 is the upper half of a float. */
static void widen_bf16(const unsigned char *from, int64_t width, float *out) {
    for (int64_t i = 0; i < width; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* binary16: shift exponent and fraction into place and multiply by 2^112, which mends the bias, subnormals
 * included; what is then 2^16 or more had the exponent of inf and NaN. */
static void widen_f16(const unsigned char *from, int64_t width, float *out) {
    for (int64_t i = 0; i < width; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
        float value;
        memcpy(&value, &bits, sizeof value);
        value *= 0x1p112f;
        memcpy(&bits, &value, sizeof bits);
        bits |= (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
        bits |= (uint32_t)(half & 0x8000) << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

void DLLM_OP(embed)(const void *table, int stored, int64_t width, const int64_t *ids, int64_t begin,
                    int64_t end, float *out) {
    const int64_t size = stored == DLLM_STORED_F32 ? 4 : 2;
    for (int64_t row = begin; row < end; row++) {
        const unsigned char *from = (const unsigned char *)table + ids[row] * width * size;
        float *to = out + row * width;
        if (stored == DLLM_STORED_BF16) {
            widen_bf16(from, width, to);
        } else if (stored == DLLM_STORED_F16) {
            widen_f16(from, width, to);
        } else {
            memcpy(to, from, (size_t)width * sizeof *to);
        }
    }
}
