/* The other operators, the scored head and the whole layer on every row of the dispatch table, against sums
 * in double written out here. Memory that is exactly as large as it must be shows what is read or written
 * beyond. */
#include <math.h>

#include "check.h"
#include "row.h"

static int current; /* row of the dispatch table */

static void near(const float *got, const double *want, int64_t count, double tolerance, const char *what) {
    for (int64_t i = 0; i < count; i++)
        CHECK(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i])), "%s %s: [%d] is %g, not %g",
              dllm_row_name(current), what, (int)i, got[i], want[i]);
}

static void test_rms_norm_and_swiglu(int threads, int64_t rows, int64_t width) {
    float *x = uniforms(rows * width), *w = uniforms(width), *y = exact(rows * width * 4);
    double *want = malloc((size_t)(rows * width + 1) * sizeof *want);
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t i = 0; i < width; i++)
            square += (double)x[r * width + i] * x[r * width + i];
        for (int64_t i = 0; i < width; i++)
            want[r * width + i] = x[r * width + i] / sqrt(square / (double)width + 1e-5) * w[i];
    }
    CHECK(dllm_rms_norm(current, threads, x, w, 1e-5f, rows, width, y) == DLLM_OK, "status");
    near(y, want, rows * width, 2e-6, "rms_norm");
    float *gate_up = uniforms(rows * 2 * width);
    for (int64_t i = 0; i < rows * width; i++) {
        const float *row = gate_up + i / width * 2 * width;
        double gate = row[i % width];
        want[i] = gate / (1 + exp(-gate)) * row[width + i % width];
    }
    CHECK(dllm_swiglu(current, threads, gate_up, rows, width, y) == DLLM_OK, "status");
    near(y, want, rows * width, 1e-6, "swiglu");
    for (int64_t i = 0; i < rows * width; i++)
        want[i] = x[i] + y[i];
    CHECK(dllm_add(current, threads, x, y, rows * width) == DLLM_OK, "status");
    near(x, want, rows * width, 1e-7, "add");
    FREE_FLOATS(gate_up, rows * 2 * width);
    FREE_FLOATS(x, rows * width);
    FREE_FLOATS(w, width);
    FREE_FLOATS(y, rows * width);
    free(want);
}

typedef struct {
    int64_t heads, kv_heads, head_dim;
    int64_t q_offsets[4], kv_offsets[4]; /* three sequences, one of them without queries */
    const int64_t *visible;
} heads_shape;

static void expect_attention(const heads_shape *s, const float *q, const float *k, const float *v,
                             double *y) {
    int64_t hd = s->head_dim, width = s->heads * hd, kv_width = s->kv_heads * hd;
    double weight[64];
    for (int seq = 0; seq < 3; seq++)
        for (int64_t r = s->q_offsets[seq]; r < s->q_offsets[seq + 1]; r++)
            for (int64_t h = 0; h < s->heads; h++) {
                int64_t at = h / (s->heads / s->kv_heads) * hd, first = s->kv_offsets[seq],
                        last = s->visible ? first + s->visible[r] : s->kv_offsets[seq + 1];
                double total = 0, *out = y + r * width + h * hd;
                for (int64_t t = first; t < last; t++) {
                    double score = 0;
                    for (int64_t i = 0; i < hd; i++)
                        score += (double)q[r * width + h * hd + i] * k[t * kv_width + at + i];
                    total += weight[t] = exp(score / sqrt((double)hd));
                }
                for (int64_t i = 0; i < hd; i++) {
                    out[i] = 0;
                    for (int64_t t = first; t < last; t++)
                        out[i] += weight[t] / total * v[t * kv_width + at + i];
                }
            }
}

static void test_attention(int threads, int64_t heads, int64_t kv_heads, int64_t head_dim) {
    heads_shape s = {heads, kv_heads, head_dim, {0, 9, 9, 26}, {0, 17, 20, 41}, NULL};
    int64_t visible[26], rows = 26, slots = 41, width = heads * head_dim, kv_width = kv_heads * head_dim;
    float *q = uniforms(rows * width), *k = uniforms(slots * kv_width), *v = uniforms(slots * kv_width);
    float *y = exact(rows * width * 4);
    double *want = malloc((size_t)(rows * width) * sizeof *want);
    expect_attention(&s, q, k, v, want);
    dllm_rows r = {.rows = rows, .sequences = 3, .q_offsets = s.q_offsets, .kv_offsets = s.kv_offsets};
    int64_t bytes = dllm_attention_scratch(current, threads, head_dim);
    void *scratch = exact(bytes);
    CHECK(dllm_attention_run(current, threads, q, k, v, heads, kv_heads, head_dim, &r, y, scratch) == DLLM_OK,
          "status");
    near(y, want, rows * width, 3e-6, "attention");
    for (int64_t i = 0; i < rows; i++) /* from nothing to everything */
        visible[i] = i % 4 == 3 ? 0 : i < 9 ? 2 * i + 1 : i - 5;
    s.visible = r.visible = visible;
    expect_attention(&s, q, k, v, want);
    CHECK(dllm_attention_run(current, threads, q, k, v, heads, kv_heads, head_dim, &r, y, scratch) == DLLM_OK,
          "status");
    near(y, want, rows * width, 3e-6, "attention to leading slots");
    release(scratch, bytes, "scratch");
    FREE_FLOATS(q, rows * width);
    FREE_FLOATS(k, slots * kv_width);
    FREE_FLOATS(v, slots * kv_width);
    FREE_FLOATS(y, rows * width);
    free(want);
}

/* A linear layer of random weights. */
static dllm_linear *new_linear(int64_t n, int64_t k, int scheme, int threads) {
    dllm_linear *l = calloc(1, sizeof *l);
    *l = (dllm_linear){.n = n, .k = k, .scheme = scheme, .row = current};
    l->weight = exact(dllm_weight_bytes(l));
    l->scale = exact(dllm_scale_bytes(l));
    float *w = uniforms(n * k);
    CHECK(dllm_pack(threads, l, w, 0, n) == DLLM_OK, "pack");
    FREE_FLOATS(w, n * k);
    return l;
}

static void free_linear(dllm_linear *l) {
    release(l->weight, dllm_weight_bytes(l), "weight");
    release(l->scale, dllm_scale_bytes(l), "scale");
    free(l);
}

static void run_linear(int threads, const dllm_linear *l, int kind, const float *x, const float *norm,
                       int64_t rows, float *y) {
    int64_t bytes = dllm_linear_scratch(l, threads, rows);
    void *scratch = exact(bytes);
    dllm_input input = {.kind = kind, .eps = 1e-5f, .x = x, .norm = norm};
    CHECK(dllm_linear_run(threads, l, &input, rows, y, NULL, scratch) == DLLM_OK, "status");
    release(scratch, bytes, "scratch");
}

/* Statistics of logits in double, and of the head block by block. */
static void check_statistics(const float *logits, int64_t rows, int64_t columns, const dllm_scores *s) {
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * columns;
        int64_t id = 0;
        for (int64_t i = 1; i < columns; i++)
            id = x[i] > x[id] ? i : id;
        float second = -INFINITY;
        double total = 0, moment = 0;
        for (int64_t i = 0; i < columns; i++) {
            second = i != id && x[i] > second ? x[i] : second;
            total += exp((double)x[i] - x[id]);
            moment += exp((double)x[i] - x[id]) * ((double)x[i] - x[id]);
        }
        CHECK(s->ids[r] == id && s->top[r] == x[id] && s->second[r] == second, "%s: id %d, not %d",
              dllm_row_name(current), (int)s->ids[r], (int)id);
        CHECK(fabs(s->logsumexp[r] - (x[id] + log(total))) < 1e-5 * (1 + fabs(s->logsumexp[r])), "logsumexp");
        CHECK(fabs(s->entropy[r] - (log(total) - moment / total)) < 1e-5, "entropy");
    }
}

static void test_scores(int threads, int scheme, int64_t columns, int64_t rows) {
    int64_t k = 70, bytes;
    dllm_linear *head = new_linear(columns, k, scheme, threads);
    float *x = uniforms(rows * k), *logits = exact(rows * columns * 4), *numbers = exact(4 * rows * 4);
    int64_t *ids = exact(rows * 8);
    dllm_scores s = {ids, numbers, numbers + rows, numbers + 2 * rows, numbers + 3 * rows};
    run_linear(threads, head, DLLM_PLAIN, x, NULL, rows, logits);
    void *scratch = exact(bytes = dllm_score_scratch(head, threads, rows));
    CHECK(dllm_score(threads, head, x, rows, &s, scratch) == DLLM_OK, "status");
    check_statistics(logits, rows, columns, &s);
    release(scratch, bytes, "scratch");
    logits[columns - 1] = logits[0]; /* perhaps a tie */
    scratch = exact(bytes = dllm_statistics_scratch(rows, columns));
    CHECK(dllm_statistics_run(current, threads, logits, rows, columns, &s, scratch) == DLLM_OK, "status");
    check_statistics(logits, rows, columns, &s);
    release(scratch, bytes, "scratch");
    FREE_FLOATS(x, rows * k);
    FREE_FLOATS(logits, rows * columns);
    FREE_FLOATS(numbers, 4 * rows);
    release(ids, rows * 8, "ids");
    free_linear(head);
}

/* ---- the layer against the same steps one by one ---- */

enum { D = 72, H = 4, G = 2, HD = 18, ROWS = 11, SLOTS = 14 };

static void expect_layer(int threads, const dllm_layer *w, const dllm_rows *rows, const float *x, float *k,
                         float *v, float *y) {
    int64_t m = w->down->k;
    int64_t width = w->qkv->n;
    float *qkv = exact(ROWS * width * 4), *q = exact(ROWS * H * HD * 4), *a = exact(ROWS * H * HD * 4);
    float *key = exact(ROWS * G * HD * 4), *h = exact(ROWS * D * 4), *gate_up = exact(ROWS * 2 * m * 4);
    run_linear(threads, w->qkv, DLLM_NORMED, x, w->attn_norm, ROWS, qkv);
    for (int64_t r = 0; r < ROWS; r++) {
        memcpy(q + r * H * HD, qkv + r * width, H * HD * 4);
        memcpy(key + r * G * HD, qkv + r * width + H * HD, G * HD * 4);
    }
    dllm_rope(current, threads, q, H, HD, w->cos, w->sin, rows->positions, ROWS);
    dllm_rope(current, threads, key, G, HD, w->cos, w->sin, rows->positions, ROWS);
    for (int64_t r = 0; r < ROWS; r++) {
        memcpy(k + rows->slots[r] * G * HD, key + r * G * HD, G * HD * 4);
        memcpy(v + rows->slots[r] * G * HD, qkv + r * width + (H + G) * HD, G * HD * 4);
    }
    int64_t bytes = dllm_attention_scratch(current, threads, HD);
    void *scratch = exact(bytes);
    dllm_attention_run(current, threads, q, k, v, H, G, HD, rows, a, scratch);
    release(scratch, bytes, "scratch");
    run_linear(threads, w->attn_out, DLLM_PLAIN, a, NULL, ROWS, h);
    dllm_add(current, threads, h, x, ROWS * D);
    run_linear(threads, w->gate_up, DLLM_NORMED, h, w->mlp_norm, ROWS, gate_up);
    run_linear(threads, w->down, DLLM_SWIGLU, gate_up, NULL, ROWS, y);
    dllm_add(current, threads, y, h, ROWS * D);
    FREE_FLOATS(qkv, ROWS * width);
    FREE_FLOATS(q, ROWS * H * HD);
    FREE_FLOATS(a, ROWS * H * HD);
    FREE_FLOATS(key, ROWS * G * HD);
    FREE_FLOATS(h, ROWS * D);
    FREE_FLOATS(gate_up, ROWS * 2 * m);
}

/* [SLOTS][G][HD] -> [G][SLOTS][HD] */
static void heads_apart(float *store) {
    float copy[SLOTS * G * HD];
    memcpy(copy, store, sizeof copy);
    for (int slot = 0; slot < SLOTS; slot++)
        for (int g = 0; g < G; g++)
            memcpy(store + (g * SLOTS + slot) * HD, copy + (slot * G + g) * HD, HD * sizeof *store);
}

/* `apart`: heads of the store lie in one piece; m = 128: gates end with a panel, 100: within one */
/* Three layers in one call against three calls; they store to the same keys and values. */
static void check_layers(int threads, const dllm_layer *w, const dllm_rows *rows, const float *x,
                         const dllm_kv *kv) {
    const dllm_layer *layers[] = {w, w, w};
    const dllm_kv *stores[] = {kv, kv, kv};
    int64_t bytes = dllm_layers_scratch(3, layers, threads, ROWS);
    void *scratch = exact(bytes);
    float *y[] = {exact(ROWS * D * 4), exact(ROWS * D * 4), exact(ROWS * D * 4)};
    dllm_seconds seconds[3] = {{0}};
    for (int i = 0; i < 3; i++)
        CHECK(dllm_layers_run(threads, 1, layers, rows, rows, NULL, i ? y[i - 1] : x, stores, y[i], scratch,
                              seconds) == DLLM_OK,
              "status");
    CHECK(dllm_layers_run(threads, 3, layers, rows, rows, NULL, x, stores, y[0], scratch, seconds) == DLLM_OK,
          "status");
    CHECK(!memcmp(y[0], y[2], ROWS * D * 4), "%s: layers differ from one by one", dllm_row_name(current));
    for (int i = 0; i < 3; i++) {
        CHECK(seconds[i].gemm > 0 && seconds[i].attention > 0, "seconds of layer %d", i);
        FREE_FLOATS(y[i], ROWS * D);
    }
    CHECK(dllm_layers_scratch(0, layers, threads, ROWS) == 0, "scratch of no layers");
    release(scratch, bytes, "scratch");
}

static void test_layer(int threads, int scheme, int apart, int64_t m) {
    float *norms = uniforms(2 * D), *cos = uniforms(20 * HD / 2), *sin = uniforms(20 * HD / 2),
          *x = uniforms(ROWS * D);
    float *k = uniforms(SLOTS * G * HD), *v = uniforms(SLOTS * G * HD);
    float *want_k = exact(SLOTS * G * HD * 4), *want_v = exact(SLOTS * G * HD * 4),
          *want = exact(ROWS * D * 4);
    memcpy(want_k, k, SLOTS * G * HD * 4);
    memcpy(want_v, v, SLOTS * G * HD * 4);
    dllm_linear *qkv = new_linear((H + 2 * G) * HD, D, scheme, threads),
                *out = new_linear(D, H * HD, scheme, threads);
    dllm_linear *gate_up = new_linear(2 * m, D, scheme, threads), *down = new_linear(D, m, scheme, threads);
    dllm_layer w = {qkv, out, gate_up, down, norms, norms + D, cos, sin, H, G, HD, 1e-5f};
    const int64_t positions[] = {0, 1, 2, 5, 19, 3, 0, 1, 2, 3, 4},
                  slots[] = {0, 1, 2, 3, 4, 5, 8, 9, 10, 12, 13};
    const int64_t q_offsets[] = {0, 6, 11}, kv_offsets[] = {0, 8, 14};
    dllm_rows rows = {ROWS, 2, positions, slots, q_offsets, kv_offsets, NULL};
    expect_layer(threads, &w, &rows, x, want_k, want_v, want);
    dllm_kv kv = {k, v, G * HD, HD};
    if (apart) {
        heads_apart(k), heads_apart(v), heads_apart(want_k), heads_apart(want_v);
        kv = (dllm_kv){k, v, HD, SLOTS * HD};
    }

    const dllm_layer *one[] = {&w};
    const dllm_kv *store[] = {&kv};
    int64_t bytes = dllm_layers_scratch(1, one, threads, ROWS);
    void *scratch = exact(bytes);
    float *y = exact(ROWS * D * 4);
    dllm_seconds seconds = {0};
    CHECK(dllm_layers_run(threads, 1, one, &rows, &rows, NULL, x, store, y, scratch, &seconds) == DLLM_OK,
          "status");
    CHECK(!memcmp(y, want, ROWS * D * 4), "%s: layer differs from its steps", dllm_row_name(current));
    CHECK(!memcmp(k, want_k, SLOTS * G * HD * 4) && !memcmp(v, want_v, SLOTS * G * HD * 4),
          "keys and values");
    CHECK(seconds.gemm > 0 && seconds.attention > 0, "seconds");
    FREE_FLOATS(y, ROWS * D);

    const int64_t keep[] = {0, 4, 5, 10}, kept_positions[] = {0, 19, 3, 4}, kept_offsets[] = {0, 3, 4};
    dllm_rows queries = {4, 2, kept_positions, NULL, kept_offsets, kv_offsets, NULL};
    y = exact(4 * D * 4);
    CHECK(dllm_layers_run(threads, 1, one, &rows, &queries, keep, x, store, y, scratch, &seconds) == DLLM_OK,
          "status");
    for (int i = 0; i < 4; i++)
        CHECK(!memcmp(y + i * D, want + keep[i] * D, D * 4), "%s: kept row %d differs",
              dllm_row_name(current), i);
    FREE_FLOATS(y, 4 * D);

    rows.slots = NULL; /* queries alone: keys and values are as they were */
    y = exact(ROWS * D * 4);
    CHECK(dllm_layers_run(threads, 1, one, &rows, &rows, NULL, x, store, y, scratch, &seconds) == DLLM_OK,
          "status");
    CHECK(!memcmp(y, want, ROWS * D * 4), "%s: queries alone differ", dllm_row_name(current));
    CHECK(!memcmp(k, want_k, SLOTS * G * HD * 4) && !memcmp(v, want_v, SLOTS * G * HD * 4),
          "keys and values");
    FREE_FLOATS(y, ROWS * D);
    rows.slots = slots;
    check_layers(threads, &w, &rows, x, &kv);
    release(scratch, bytes, "scratch");
    free_linear(qkv), free_linear(out), free_linear(gate_up), free_linear(down);
    FREE_FLOATS(norms, 2 * D);
    FREE_FLOATS(cos, 20 * HD / 2);
    FREE_FLOATS(sin, 20 * HD / 2);
    FREE_FLOATS(x, ROWS * D);
    FREE_FLOATS(k, SLOTS * G * HD);
    FREE_FLOATS(v, SLOTS * G * HD);
    FREE_FLOATS(want_k, SLOTS * G * HD);
    FREE_FLOATS(want_v, SLOTS * G * HD);
    FREE_FLOATS(want, ROWS * D);
}

int main(void) {
    for (current = 0; current < dllm_row_count(); current++) {
        if (!dllm_row_supported(current))
            continue;
        for (int threads = 1; threads <= 2; threads++) {
            const int64_t widths[] = {1, 7, 8, 15, 16, 17, 33, 1000};
            for (int i = 0; i < 8; i++)
                test_rms_norm_and_swiglu(threads, 1 + 3 * i, widths[i]);
            test_attention(threads, 4, 4, 16);
            test_attention(threads, 6, 2, 18);
            test_attention(threads, 4, 1, 128);
            for (int scheme = DLLM_F32; scheme < DLLM_SCHEMES; scheme++) {
                test_scores(threads, scheme, 1, 2);
                test_scores(threads, scheme, 1111, 5);
                test_scores(threads, scheme, 2500, 1);
                for (int apart = 0; apart < 2; apart++)
                    test_layer(threads, scheme, apart, apart ? 128 : 100);
            }
        }
        printf("operators: %s\n", dllm_row_name(current));
    }
    printf("operators: %d failures\n", failures);
    return failures != 0;
}
