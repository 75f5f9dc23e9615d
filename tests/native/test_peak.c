/* The limits of every row, and the description of packed panels that model files rely on. */
#include "check.h"
#include "dllm.h"

static void test_limits(int row) {
    int64_t bytes = (2 << 20) + 4096; /* a piece that is not whole is left out */
    char *buffer = exact(bytes);
    for (int kind = DLLM_PEAK_INT8; kind <= DLLM_PEAK_INT4; kind++) {
        const char *name = dllm_peak_instruction(row, kind);
        double rate = dllm_peak(row, 2, kind, 3);
        CHECK(name ? rate > 1e6 : rate == 0, "%s: kind %d has rate %g", dllm_row_name(row), kind, rate);
    }
    CHECK(dllm_peak_read(row, 2, buffer, bytes) > 1e5, "%s reads", dllm_row_name(row));
    CHECK(dllm_peak_read(row, 1, buffer, 4096) == 0, "less than a piece");
    CHECK(dllm_peak(row, 1, 7, 1) == 0 && !dllm_peak_instruction(row, -1), "unknown kind");
    release(buffer, bytes, "the buffer");
}

/* Weight [n, k] of ones in one place only: found where the panels' shape says. */
static void test_panels(int row, int scheme) {
    enum { N = 45, K = 130 };
    float rows[N * K];
    for (int i = 0; i < N * K; i++)
        rows[i] = 0;
    int64_t out = 37, in = 101;
    rows[out * K + in] = 1;
    dllm_linear w = {.n = N, .k = K, .scheme = scheme, .row = row};
    dllm_panels p;
    CHECK(dllm_panel_shape(&w, &p) == DLLM_OK, "shape");
    int64_t bytes = dllm_weight_bytes(&w), scales = dllm_scale_bytes(&w);
    unsigned char *weight = w.weight = exact(bytes);
    w.scale = exact(scales);
    CHECK(dllm_pack(1, &w, rows, 0, N) == DLLM_OK, "pack");
    int64_t steps = (K + p.depth - 1) / p.depth;
    int64_t first = ((out / p.columns * steps + in / p.depth) * p.columns + out % p.columns) * p.depth;
    int64_t at = first + in % p.depth, half = p.depth / 2;
    if (scheme == DLLM_F32)
        CHECK(((float *)w.weight)[at] == 1, "float32 at %ld", (long)at);
    else if (scheme == DLLM_BF16)
        CHECK(((uint16_t *)w.weight)[at] == 0x3f80, "bfloat16 at %ld", (long)at);
    else if (scheme == DLLM_QB4W) /* code -8 in its half of a byte, 0 in the other, each plus 8 */
        CHECK(weight[first / 2 + in % half] == (in % p.depth < half ? 0x80 : 0x08), "codes at %ld", (long)at);
    else
        CHECK(weight[at] == 127 + p.zero_point, "code %d at %ld", weight[at], (long)at);
    release(weight, bytes, "the weight");
    release(w.scale, scales, "the scales");
}

int main(void) {
    for (int row = 0; row < dllm_row_count(); row++) {
        if (!dllm_row_supported(row))
            continue;
        test_limits(row);
        for (int scheme = DLLM_F32; scheme < DLLM_SCHEMES; scheme++)
            test_panels(row, scheme);
        printf("peak: %s\n", dllm_row_name(row));
    }
    double handover = 0;
    for (int i = 0; i < 100 && handover == 0; i++)
        handover = dllm_peak_handover(); /* 0 where the system let no second thread run meanwhile */
    CHECK(handover > 1e-9 && handover < 1, "a line takes %g s from thread to thread", handover);
    dllm_linear unknown = {.n = 4, .k = 4, .scheme = 7};
    dllm_panels p;
    CHECK(dllm_panel_shape(&unknown, &p) == DLLM_BAD_ARGUMENT, "unknown scheme");
    CHECK(dllm_peak(99, 1, DLLM_PEAK_INT8, 1) == 0 && !dllm_peak_instruction(99, DLLM_PEAK_INT8),
          "unknown row");
    printf("peak: %d failures\n", failures);
    return failures != 0;
}
