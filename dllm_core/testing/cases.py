"""The list of operator cases: one for correctness, for `dllm check` and for whoever measures or ports a backend."""

from __future__ import annotations

from ..quant import SCHEMES
from .case import Case
from .linear_case import LinearCase
from .operators import (
    AddCase,
    AttentionCase,
    ChooseCase,
    EmbedCase,
    LayerCase,
    RmsNormCase,
    RopeCase,
    ScoreCase,
    StatisticsCase,
    SwigluCase,
)

# Below, at and above the blocks that kernels use: vectors, groups of 128, panels of 16 and 32 columns, tiles of rows.
INPUTS = (1, 3, 64, 127, 128, 129, 192, 300, 1000, 4096)
OUTPUTS = (1, 7, 16, 31, 33, 48, 65, 130)
ROWS = (0, 1, 2, 7, 14, 15, 33, 130)

WHOLE = ((5, 5),)
RAGGED = ((1, 1), (7, 7), (0, 3), (33, 33), (15, 15))
CACHED = ((4, 19), (1, 40), (8, 8))
LONG = ((9, 200),)


def _linear(scheme: str) -> list[Case]:
    cases: list[Case] = []
    for i, k in enumerate(INPUTS):
        cases += [LinearCase(rows, k, (OUTPUTS[i % len(OUTPUTS)],), scheme) for rows in (1, 15)]
    cases += [LinearCase(rows, 192, (33,), scheme) for rows in ROWS]
    cases += [LinearCase(7, 129, (n,), scheme) for n in OUTPUTS]
    cases += [LinearCase(2, 300, (40, 8, 9), scheme, bias=True), LinearCase(33, 64, (17, 17), scheme)]
    for data in ("extreme", "ties", "edges"):
        cases += [LinearCase(14, k, (20,), scheme, data) for k in (1, 127, 128, 300)]
    cases.append(LinearCase(2, 4096, (33,), scheme, "extreme"))
    cases += [LinearCase(3, k, (33,), scheme, "large") for k in (1100, 4096, 12291)]
    cases.append(LinearCase(130, 1000, (270,), scheme))  # enough work for every thread
    cases.append(LinearCase(3, 12291, (5,), scheme))  # as deep as the models there are
    cases.append(LinearCase(1, 5, (1030, 3), scheme))  # more outputs than are read at a time
    return cases


def _attention() -> list[Case]:
    shapes = [(4, 4, 16), (6, 2, 12), (1, 1, 128), (8, 1, 64), (2, 2, 2), (4, 2, 80)]  # heads, kv heads, head width
    cases: list[Case] = [AttentionCase(RAGGED, *shape) for shape in shapes]
    cases += [AttentionCase(CACHED, *shape) for shape in shapes]
    cases += [AttentionCase(s, 4, 2, 16, d) for s in (WHOLE, LONG) for d in ("sharp", "equal", "rising")]
    cases += [AttentionCase(((130, 130),), 2, 1, 32), AttentionCase(((2, 300), (257, 257)), 2, 2, 16)]
    for segments in (RAGGED, CACHED, ((3, 150), (70, 130))):
        cases += [AttentionCase(segments, 4, 2, 16, mask=mask) for mask in ("causal", "block", "none")]
    cases += [AttentionCase(((0, 0), (2, 2)), 2, 1, 8, mask=mask) for mask in ("full", "causal")]
    return cases


def _rows() -> list[Case]:
    widths = (1, 3, 64, 127, 129, 1000, 4096)
    cases: list[Case] = [RmsNormCase(rows, width) for width in widths for rows in (1, 15)]
    cases += [RmsNormCase(14, 192, "edges"), RmsNormCase(0, 64)]
    cases += [RopeCase(*s) for s in [(1, 1, 2), (15, 4, 16), (33, 6, 12), (7, 1, 128), (0, 2, 8)]]
    cases += [SwigluCase(*s) for s in [(1, 1), (7, 3), (15, 64), (33, 127), (2, 1000), (0, 16)]]
    cases += [AddCase(*s) for s in [(1, 1), (7, 3), (15, 127), (130, 64), (0, 16)]]
    cases += [EmbedCase(rows, width, stored) for stored in ("F32", "F16", "BF16") for rows, width in [(1, 3), (33, 64)]]
    return cases


def _vocabulary() -> list[Case]:
    cases: list[Case] = [StatisticsCase(rows, vocab) for rows, vocab in [(1, 1), (7, 2), (15, 31), (33, 1000)]]
    cases += [StatisticsCase(0, 64), StatisticsCase(2, 126464)]
    data = ("ties", "banned", "sharp", "tail")
    cases += [StatisticsCase(3, vocab, kind) for vocab in (16, 509, 5000) for kind in data]
    cases += [ChooseCase(rows, vocab, t) for rows, vocab, t in [(1, 2, 1.0), (15, 509, 0.3), (7, 1000, 2.5)]]
    return cases


def _composites(scheme: str) -> list[Case]:
    return [
        LayerCase(WHOLE, 4, 2, 16, 96, scheme),
        LayerCase(RAGGED, 6, 2, 12, 200, scheme),
        LayerCase(CACHED, 2, 2, 64, 160, scheme),
        LayerCase(CACHED, 4, 2, 16, 96, scheme, "block"),
        ScoreCase(1, 64, 1000, scheme),
        ScoreCase(70, 72, 509, scheme),
        ScoreCase(0, 64, 33, scheme),
        ScoreCase(3, 32, 3000, scheme),
        ScoreCase(3, 32, 3000, scheme, "ties"),
    ]


CASES: tuple[Case, ...] = (
    *_rows(),
    *_attention(),
    *_vocabulary(),
    *(case for scheme in SCHEMES for case in _linear(scheme)),
    *(case for scheme in SCHEMES for case in _composites(scheme)),
)
