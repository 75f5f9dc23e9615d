/* Linear layers on every row of the dispatch table against sums written out here: codes, scales and integer
 * sums exactly, outputs within rounding; every edge of the tiles; nothing written behind an output. */
#include <math.h>

#include "check.h"
#include "linear.h"

static const char *const SCHEMES[] = {"f32", "qc8w", "qb8w", "qb4w", "bf16"};

typedef struct {
    int row, scheme, threads, extreme;
    int64_t n, k, rows;
} shape;

/* The rules of dllm_core/quant.py, one number at a time. */
static void quantise_8bit(const float *x, int64_t k, int8_t *codes, float *scale) {
    float amax = 0;
    for (int64_t i = 0; i < k; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    *scale = amax < 0x1p-100f ? 0 : amax / 127.0f;
    float inverse = amax < 0x1p-100f ? 0 : 127.0f / amax;
    for (int64_t i = 0; i < k; i++) {
        float scaled = x[i] * inverse;
        codes[i] = (int8_t)nearbyintf(scaled);
    }
}

static void quantise_4bit(const float *x, int64_t k, int8_t *codes, float *scale) {
    float extreme = 0;
    for (int64_t i = 0; i < k; i++)
        if (fabsf(x[i]) > fabsf(extreme) || (x[i] > 0 && x[i] == -extreme))
            extreme = x[i];
    int zero = fabsf(extreme) < 0x1p-100f;
    *scale = zero ? 0 : extreme / -8.4f;
    float inverse = zero ? 0 : -8.4f / extreme;
    for (int64_t i = 0; i < k; i++) {
        float scaled = x[i] * inverse, code = nearbyintf(scaled);
        codes[i] = (int8_t)(code > 7 ? 7 : code);
    }
}

static void quantise_weights(const shape *s, const float *x, int64_t k, int8_t *codes, float *scale) {
    (s->scheme == DLLM_QB4W ? quantise_4bit : quantise_8bit)(x, k, codes, scale);
}

static int64_t group_size(const shape *s) {
    return s->scheme == DLLM_QB8W || s->scheme == DLLM_QB4W ? DLLM_GROUP : s->k;
}

static void expect_int8(const shape *s, const float *x, const float *w, const float *bias, int32_t *acc,
                        int8_t *codes, float *scale, double *y) {
    int64_t group = group_size(s), groups = dllm_ceil_div(s->k, group);
    int8_t *w_codes = malloc((size_t)s->k);
    float *w_scale = malloc((size_t)groups * sizeof(float));
    for (int64_t r = 0; r < s->rows; r++)
        quantise_8bit(x + r * s->k, s->k, codes + r * s->k, scale + r);
    for (int64_t o = 0; o < s->n; o++) {
        for (int64_t g = 0; g < groups; g++) {
            int64_t width = g * group + group < s->k ? group : s->k - g * group;
            quantise_weights(s, w + o * s->k + g * group, width, w_codes + g * group, w_scale + g);
        }
        for (int64_t r = 0; r < s->rows; r++) {
            y[r * s->n + o] = bias[o];
            for (int64_t g = 0; g < groups; g++) {
                int64_t sum = 0;
                for (int64_t i = g * group; i < g * group + group && i < s->k; i++)
                    sum += w_codes[i] * codes[r * s->k + i];
                acc[(g * s->rows + r) * s->n + o] = (int32_t)sum;
                y[r * s->n + o] += (double)sum * w_scale[g] * scale[r];
            }
        }
    }
    free(w_codes);
    free(w_scale);
}

/* To the eight digits of a bfloat16, half to even. */
static float rounded(const shape *s, float x) {
    int exponent;
    if (s->scheme != DLLM_BF16)
        return x;
    float digits = frexpf(x, &exponent);
    return ldexpf(nearbyintf(ldexpf(digits, 8)), exponent - 8);
}

static float *rounded_copy(const shape *s, const float *x, int64_t count) {
    float *copy = malloc((size_t)count * sizeof *copy);
    for (int64_t i = 0; i < count; i++)
        copy[i] = rounded(s, x[i]);
    return copy;
}

static void expect_f32(const shape *s, const float *x, const float *w, const float *bias, double *y) {
    float *left = rounded_copy(s, x, s->rows * s->k), *right = rounded_copy(s, w, s->n * s->k);
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t o = 0; o < s->n; o++) {
            y[r * s->n + o] = bias[o];
            for (int64_t i = 0; i < s->k; i++)
                y[r * s->n + o] += (double)left[r * s->k + i] * right[o * s->k + i];
        }
    free(left), free(right);
}

/* Rows that bring integer instructions alone share the other kernels of the row that they extend. */
static const char *isa_of(const shape *s) {
    const char *name = dllm_row_name(s->row);
    int floats = s->scheme == DLLM_F32 || s->scheme == DLLM_BF16;
    if (s->scheme == DLLM_QC8W || s->scheme == DLLM_QB8W)
        return name;
    if (!strncmp(name, "neon", 4))
        return floats && !(s->scheme == DLLM_BF16 && !strcmp(name, "neoni8mm")) ? "neon" : name;
    return floats && !strcmp(name, "avxvnni") ? "avx2" : name;
}

static dllm_linear new_linear(const shape *s, const float *w, const float *bias) {
    dllm_linear l = {.n = s->n, .k = s->k, .scheme = s->scheme, .row = s->row};
    l.weight = exact(dllm_weight_bytes(&l));
    l.scale = exact(dllm_scale_bytes(&l));
    l.bias = exact(dllm_bias_bytes(&l));
    memset(l.bias, 0, (size_t)dllm_bias_bytes(&l));
    memcpy(l.bias, bias, (size_t)s->n * sizeof(float));
    int64_t half = (s->n + 1) / 2; /* two calls, which usually meet inside a panel */
    CHECK(dllm_pack(s->threads, &l, w, 0, half) == DLLM_OK, "pack");
    if (half < s->n)
        CHECK(dllm_pack(s->threads, &l, w + half * s->k, half, s->n - half) == DLLM_OK, "pack");
    return l;
}

static void free_linear(dllm_linear *l) {
    release(l->weight, dllm_weight_bytes(l), "weight");
    release(l->scale, dllm_scale_bytes(l), "scale");
    release(l->bias, dllm_bias_bytes(l), "bias");
}

static void check_integers(const shape *s, const dllm_linear *l, const float *x, const int32_t *acc,
                           const int8_t *codes, const float *scale) {
    int64_t groups = dllm_groups(l), count = groups * s->rows * s->n,
            bytes = dllm_linear_scratch(l, s->threads, s->rows);
    int8_t *got_codes = exact(s->rows * s->k);
    float *got_scale = exact(s->rows * 4);
    int32_t *got = exact(count * 4);
    void *scratch = exact(bytes);
    CHECK(dllm_accumulators(s->threads, l, x, s->rows, got_codes, got_scale, got, scratch) == DLLM_OK,
          "status");
    CHECK(!memcmp(got_codes, codes, (size_t)(s->rows * s->k)), "codes");
    CHECK(!memcmp(got_scale, scale, (size_t)(s->rows * 4)), "scales");
    for (int64_t i = 0; i < count; i++)
        CHECK(got[i] == acc[i], "%s %s n=%d k=%d rows=%d: sum %d is %d, not %d", dllm_row_name(s->row),
              SCHEMES[s->scheme], (int)s->n, (int)s->k, (int)s->rows, (int)i, got[i], acc[i]);
    release(got_codes, s->rows * s->k, "codes");
    release(got_scale, s->rows * 4, "scale");
    release(got, count * 4, "accumulators");
    release(scratch, bytes, "scratch");
}

static void check_outputs(const shape *s, const dllm_linear *l, const float *x, const double *want) {
    int64_t count = s->rows * s->n, bytes = dllm_linear_scratch(l, s->threads, s->rows);
    float *y = uniforms(count), *residual = exact(count * 4);
    memcpy(residual, y, (size_t)count * 4);
    void *scratch = exact(bytes);
    dllm_input input = {.kind = DLLM_PLAIN, .x = x};
    CHECK(dllm_linear_run(s->threads, l, &input, s->rows, y, y, scratch) == DLLM_OK, "status"); /* in place */
    double tolerance = 2e-6 * (double)(s->k + 8) * (s->extreme ? 20 : 1);
    for (int64_t i = 0; i < count; i++)
        CHECK(fabs(y[i] - (want[i] + residual[i])) <= tolerance,
              "%s %s n=%d k=%d rows=%d: y[%d] is %g, not %g", dllm_row_name(s->row), SCHEMES[s->scheme],
              (int)s->n, (int)s->k, (int)s->rows, (int)i, y[i], want[i] + residual[i]);
    const char *kernel = dllm_last_kernel(), *isa = strstr(kernel, "__");
    CHECK(isa && !strcmp(isa + 2, isa_of(s)), "%s ran on row %s", kernel, dllm_row_name(s->row));
    FREE_FLOATS(y, count);
    FREE_FLOATS(residual, count);
    release(scratch, bytes, "scratch");
}

/* What CPUs run that lack the instructions of the row's own kernel. */
static void check_fallback(const shape *s, const dllm_linear *l, const float *x, const double *want) {
    const dllm_gemm *own = dllm_get_row(s->row)->gemm[s->scheme], *g = own->fallback;
    if (!g)
        return;
    CHECK(g->nr == own->nr && g->kr == own->kr && g->b_bits == own->b_bits, "another layout");
    dllm_packed p;
    int64_t count = s->rows * s->n, bytes = dllm_packed_plan_for(&p, g, l, s->threads, s->rows, NULL, NULL);
    float *y = exact(count * 4);
    void *scratch = exact(bytes);
    dllm_input input = {.kind = DLLM_PLAIN, .x = x};
    dllm_packed_plan_for(&p, g, l, s->threads, s->rows, &input, scratch);
    dllm_packed_gemm(&p, y, NULL, NULL);
    for (int64_t i = 0; i < count; i++)
        CHECK(fabs(y[i] - want[i]) <= 2e-6 * (double)(s->k + 8) * (s->extreme ? 20 : 1),
              "%s k=%d rows=%d: y[%d] is %g, not %g", dllm_last_kernel(), (int)s->k, (int)s->rows, (int)i,
              y[i], want[i]);
    FREE_FLOATS(y, count);
    release(scratch, bytes, "scratch");
}

static void check_unpack(const shape *s, const dllm_linear *l, const float *w) {
    int64_t groups = dllm_groups(l), size = group_size(s);
    float *values = exact(s->n * s->k * 4), *scales = exact(s->n * groups * 4);
    int8_t *codes = exact(s->n * s->k), *want = malloc((size_t)s->k);
    CHECK(dllm_unpack(l, codes, scales, values) == DLLM_OK, "status");
    for (int64_t i = 0; !dllm_has_codes(l) && i < s->n * s->k; i++)
        CHECK(values[i] == rounded(s, w[i]), "unpacked values");
    for (int64_t o = 0; dllm_has_codes(l) && o < s->n; o++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = o * s->k + g * size, width = g * size + size < s->k ? size : s->k - g * size;
            float scale;
            quantise_weights(s, w + at, width, want, &scale);
            CHECK(scale == scales[o * groups + g] && !memcmp(codes + at, want, (size_t)width),
                  "unpacked codes");
        }
    release(values, s->n * s->k * 4, "values");
    release(scales, s->n * groups * 4, "scales");
    release(codes, s->n * s->k, "codes");
    free(want);
}

static void check_shape(const shape *s) {
    int64_t groups = dllm_ceil_div(s->k, group_size(s)), count = s->rows * s->n;
    float *x = uniforms(s->rows * s->k), *w = uniforms(s->n * s->k), *bias = uniforms(s->n);
    if (s->extreme) /* every code is as far from 0 as there are; row 0 times output 0 is the largest sum there
                       is */
        for (int64_t i = 0; i < s->rows * s->k || i < s->n * s->k; i++) {
            if (i < s->rows * s->k)
                x[i] = i < s->k || x[i] > 0 ? 1 : -1;
            if (i < s->n * s->k)
                w[i] = i < s->k   ? (s->scheme == DLLM_QB4W && i % DLLM_GROUP == 5 ? 1 : -1)
                       : w[i] > 0 ? 1
                                  : -1;
        }
    double *y = malloc((size_t)count * sizeof *y);
    dllm_linear l = new_linear(s, w, bias);
    if (!dllm_has_codes(&l)) {
        expect_f32(s, x, w, bias, y);
    } else {
        int32_t *acc = malloc((size_t)(groups * count) * sizeof *acc);
        int8_t *codes = malloc((size_t)(s->rows * s->k));
        float *scale = malloc((size_t)s->rows * sizeof *scale);
        expect_int8(s, x, w, bias, acc, codes, scale, y);
        check_integers(s, &l, x, acc, codes, scale);
        free(acc), free(codes), free(scale);
    }
    check_outputs(s, &l, x, y);
    check_fallback(s, &l, x, y);
    check_unpack(s, &l, w);
    FREE_FLOATS(x, s->rows * s->k);
    FREE_FLOATS(w, s->n * s->k);
    FREE_FLOATS(bias, s->n);
    free(y);
    free_linear(&l);
}

static void test_edges(int row, int scheme) {
    const dllm_gemm *g = dllm_get_row(row)->gemm[scheme];
    const int64_t depths[] = {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300};
    const int64_t widths[] = {1, g->nr - 1, g->nr, g->nr + 1, 2 * g->nr + 3};
    for (int i = 0; i < 15; i++)
        for (int threads = 1; threads <= 2; threads++)
            check_shape(&(shape){row, scheme, threads, i % 2, widths[i % 5], depths[i], 1 + i % g->mr});
    for (int i = 0; i < 5; i++)
        for (int64_t rows = 1; rows <= 2 * g->mr + 1; rows++)
            check_shape(&(shape){row, scheme, 1 + (int)rows % 2, 0, widths[i], 131, rows});
    check_shape(&(shape){row, scheme, 2, 0, 40 * g->nr - 1, 257, 40}); /* enough work for both threads */
    check_shape(&(shape){row, scheme, 2, 1, g->nr, 20000, 3});         /* sums near the end of int32 */
}

static void test_bad_arguments(void) {
    dllm_linear l = {.n = 4, .k = 4, .scheme = 7};
    CHECK(dllm_weight_bytes(&l) == 0 && dllm_linear_scratch(&l, 1, 1) == 0, "unknown scheme");
    l.scheme = -1;
    CHECK(dllm_weight_bytes(&l) == 0 && dllm_linear_scratch(&l, 1, 1) == 0, "unknown scheme");
    l = (dllm_linear){.n = 4, .k = 4, .row = 99};
    CHECK(dllm_weight_bytes(&l) == 0 && dllm_pack(1, &l, NULL, 0, 1) == DLLM_BAD_ARGUMENT, "unknown row");
    l = (dllm_linear){.n = 4, .k = DLLM_MAX_K + 1, .scheme = DLLM_QC8W};
    CHECK(dllm_linear_run(1, &l, NULL, 1, NULL, NULL, NULL) == DLLM_BAD_ARGUMENT, "k too large");
    CHECK(dllm_row_name(-1) == NULL && dllm_row_name(99) == NULL && !dllm_row_supported(99), "row names");
}

int main(void) {
    for (int row = 0; row < dllm_row_count(); row++)
        for (int scheme = DLLM_F32; dllm_row_supported(row) && scheme < DLLM_SCHEMES; scheme++) {
            test_edges(row, scheme);
            printf("linear: %s %s\n", dllm_row_name(row), SCHEMES[scheme]);
        }
    test_bad_arguments();
    printf("linear: %d failures\n", failures);
    return failures != 0;
}
