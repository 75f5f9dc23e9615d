"""int8 and int4 matrix product in plain loops, for every CPU that LLVM knows.

Weights in memory: panels of 4 outputs, each a row of K bytes; a tile is 4 rows of activations by 4 outputs.

    panel p:  output 4p    k = 0 1 2 3 ...
              output 4p+1  k = 0 1 2 3 ...   every row is read along k, 16 products per step and vector lane

Rows of four-bit weights have half as many bytes: the first half of K below, the second half above. A panel of them is
spread to bytes once, and all rows of activations then pass over it.

Two things make LLVM turn the loop into multiply-add instructions on bytes: slices of rows that start at index 0, so
that it sees consecutive addresses, and sums cast back to int32, because numba widens int32 products to int64.
It then finds vpdpwssd on AVX512-VNNI (23 % of the int8 peak at 128 rows and one group, 13 % with groups of 128,
whose 16 sums across lanes cost as much as the products).
"""

from __future__ import annotations

import numpy as np

from .jit import claim, compiled
from .kernel import Kernel


@compiled
def linear(claims, bits, codes, offsets, row_scale, panels, scales, bias, group, out):
    """out[R, N] = row_scale * sum over groups of (integer product * scales) + bias, for the panels it claims.

    In the order and with the roundings of `dllm_core.quant.rescale`: the result is the same float32.
    """
    rows, n = out.shape
    sums = np.empty((4, 4), np.int32)
    total = np.empty((4, 4), np.float32)
    weights = np.empty((4, panels.shape[3] * 8 // bits), np.uint8)
    while True:
        p = claim(claims)
        if p >= claims[1]:
            return
        spread(panels[p, 0], bits, weights)
        for r in range(0, rows, 4):
            total[:] = 0
            for g in range(offsets.shape[0]):
                tile(codes, offsets, weights, r, g, group, sums)
                for i in range(4):
                    for j in range(4):
                        total[i, j] += np.float32(sums[i, j]) * scales[p, g, j]
            for i in range(min(4, rows - r)):
                for j in range(min(4, n - 4 * p)):
                    out[r + i, 4 * p + j] = total[i, j] * row_scale[r + i] + bias[4 * p + j]


@compiled
def spread(panel, bits, weights):
    """A panel as bytes: weights uint8 [4, K]."""
    if bits == 8:
        weights[:] = panel
        return
    half = panel.shape[1]
    for j in range(4):
        stored, low, high = panel[j], weights[j, :half], weights[j, half:]
        for i in range(half):
            low[i] = stored[i] & 15
            high[i] = stored[i] >> 4


@compiled
def tile(codes, offsets, weights, r, g, group, sums):
    """sums[i, j] = offset of row r + i + sum over group g of its codes times the weights of output j."""
    a, b = g * group, min((g + 1) * group, weights.shape[1])
    x0, x1, x2, x3 = codes[r, a:b], codes[r + 1, a:b], codes[r + 2, a:b], codes[r + 3, a:b]
    w0, w1, w2, w3 = weights[0, a:b], weights[1, a:b], weights[2, a:b], weights[3, a:b]
    s00 = s01 = s02 = s03 = offsets[g, r]
    s10 = s11 = s12 = s13 = offsets[g, r + 1]
    s20 = s21 = s22 = s23 = offsets[g, r + 2]
    s30 = s31 = s32 = s33 = offsets[g, r + 3]
    for k in range(b - a):
        a0, a1, a2, a3 = np.int32(x0[k]), np.int32(x1[k]), np.int32(x2[k]), np.int32(x3[k])
        b0, b1, b2, b3 = np.int32(w0[k]), np.int32(w1[k]), np.int32(w2[k]), np.int32(w3[k])
        s00, s01 = np.int32(s00 + np.int32(a0 * b0)), np.int32(s01 + np.int32(a0 * b1))
        s02, s03 = np.int32(s02 + np.int32(a0 * b2)), np.int32(s03 + np.int32(a0 * b3))
        s10, s11 = np.int32(s10 + np.int32(a1 * b0)), np.int32(s11 + np.int32(a1 * b1))
        s12, s13 = np.int32(s12 + np.int32(a1 * b2)), np.int32(s13 + np.int32(a1 * b3))
        s20, s21 = np.int32(s20 + np.int32(a2 * b0)), np.int32(s21 + np.int32(a2 * b1))
        s22, s23 = np.int32(s22 + np.int32(a2 * b2)), np.int32(s23 + np.int32(a2 * b3))
        s30, s31 = np.int32(s30 + np.int32(a3 * b0)), np.int32(s31 + np.int32(a3 * b1))
        s32, s33 = np.int32(s32 + np.int32(a3 * b2)), np.int32(s33 + np.int32(a3 * b3))
    sums[0, 0], sums[0, 1], sums[0, 2], sums[0, 3] = s00, s01, s02, s03
    sums[1, 0], sums[1, 1], sums[1, 2], sums[1, 3] = s10, s11, s12, s13
    sums[2, 0], sums[2, 1], sums[2, 2], sums[2, 3] = s20, s21, s22, s23
    sums[3, 0], sums[3, 1], sums[3, 2], sums[3, 3] = s30, s31, s32, s33


@compiled
def accumulate(bits, codes, offsets, panels, group, out):
    """The integers behind `linear`: out int32 [G, R, P * 4]."""
    sums = np.empty((4, 4), np.int32)
    weights = np.empty((4, panels.shape[3] * 8 // bits), np.uint8)
    for p in range(panels.shape[0]):
        spread(panels[p, 0], bits, weights)
        for g in range(out.shape[0]):
            for r in range(0, out.shape[1], 4):
                tile(codes, offsets, weights, r, g, group, sums)
                for i in range(min(4, out.shape[1] - r)):
                    for j in range(4):
                        out[g, r + i, 4 * p + j] = sums[i, j]


KERNEL = Kernel(
    isa="portable", columns=4, depth={8: 0, 4: 0}, linear=linear, accumulate=accumulate, unavailable=lambda: None
)
