"""One class per operator but `linear`: how its inputs are made, how it is called, what rounding allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..backend import F32, Backend, LayerWeights, Rows, block_causal, causal
from ..decoding.canvas import full_rows
from ..models.base import rope_tables
from ..tensors import Tensor, from_array
from .case import TINY, UNIT, Array, Case, Guarded, Outputs, fill_guarded, walk
from .linear_case import edges


@dataclass(frozen=True)
class RmsNormCase(Case):
    """rms_norm of [rows, width]; data "edges" as for linear."""

    rows: int
    width: int
    data: str = "normal"

    op = "rms_norm"
    reason = "a float32 mean of `width` squares in any order, then four roundings"

    def run(self, backend: Backend) -> Outputs:
        rng = self.rng()
        x = rng.standard_normal((self.rows, self.width), np.float32) * 10
        x = edges(x, True) if self.data == "edges" else x
        weight = 1 + rng.standard_normal(self.width, np.float32)
        out = Guarded(self.rows, self.width)
        with np.errstate(invalid="ignore"):
            y = out.check(backend.rms_norm(x, weight, 1e-5, out.array))
        return Outputs(close={"y": y})

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        return {"y": np.nan_to_num(np.abs(reference.close["y"])) * (walk(self.width) + 4 * UNIT) + TINY}


@dataclass(frozen=True)
class RopeCase(Case):
    """rope in place on [rows, heads * head_dim] at positions that are neither ascending nor unique."""

    rows: int
    heads: int
    head_dim: int

    op = "rope"
    reason = "two products and a sum"

    def run(self, backend: Backend) -> Outputs:
        rng = self.rng()
        cos, sin = rope_tables(self.head_dim, 10000.0, 300)
        x = fill_guarded(rng.standard_normal((self.rows, self.heads * self.head_dim), np.float32))
        backend.rope(x.array, self.heads, cos, sin, rng.integers(0, 300, self.rows))
        return Outputs(close={"x": x.check()})

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        return {"x": 8 * UNIT * float(np.abs(reference.close["x"]).max(initial=0))}


def segment_rows(segments: tuple[tuple[int, int], ...]) -> Rows:
    """The pass that runs the last q of the t positions of every (q, t)."""
    q = np.cumsum([0, *(q for q, _ in segments)]).astype(np.int64)
    kv = np.cumsum([0, *(t for _, t in segments)]).astype(np.int64)
    positions = np.concatenate([np.arange(t - n, t, dtype=np.int64) for n, t in segments])
    slots = positions + np.repeat(kv[:-1], [n for n, _ in segments])
    return Rows(positions, slots, q, kv)


def masked(rows: Rows, mask: str) -> Rows:
    """`rows` with the mask that a case names."""
    if mask == "none":
        return replace(rows, visible=np.where(np.arange(len(rows)) % 2, 0, rows.positions + 1))
    return {"full": rows, "causal": causal(rows), "block": block_causal(rows, 5)}[mask]


@dataclass(frozen=True)
class AttentionCase(Case):
    """attention over ragged segments of (query rows, key rows). data: "normal"; "sharp": scores of several hundred;
    "equal": all keys alike; "rising": every key weighs more than all before it together. mask: "full", "causal",
    "block" (blocks of five positions), "none" (every other row sees nothing)."""

    segments: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    data: str = "normal"
    mask: str = "full"

    op = "attention"
    reason = "scores are sums of D products, their error passes exp; then a weighted mean over the keys"

    def inputs(self) -> tuple[F32, F32, F32, Rows]:
        rng, rows = self.rng(), segment_rows(self.segments)
        slots = int(rows.kv_offsets[-1])
        q = rng.standard_normal((len(rows), self.heads, self.head_dim), np.float32)
        k, v = rng.standard_normal((2, slots, self.kv_heads, self.head_dim), np.float32)
        if self.data == "sharp":
            q *= 100
        elif self.data == "equal":
            k[...] = k[:1]
        elif self.data == "rising":
            q[...] = np.abs(q)
            k[...] = np.arange(slots, dtype=np.float32)[:, None, None] / np.float32(self.head_dim**0.5)
        return q, k, v, masked(rows, self.mask)

    def run(self, backend: Backend) -> Outputs:
        q, k, v, rows = self.inputs()
        out = Guarded(len(rows), self.heads * self.head_dim)
        return Outputs(close={"y": out.check(backend.attention(q, k, v, rows, out.array))})

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        q, k, v, _ = self.inputs()
        largest = np.abs(q).sum(axis=2).max(initial=0) * np.abs(k).max() / self.head_dim**0.5
        keys = max(t for _, t in self.segments)
        return {"y": float((2 * walk(self.head_dim) * largest + walk(keys)) * np.abs(v).max())}


@dataclass(frozen=True)
class SwigluCase(Case):
    """swiglu of [rows, 2 width], gates from -200 to 200 so that exp overflows."""

    rows: int
    width: int

    op = "swiglu"
    reason = "exp within four ulp, a division, two products"

    def run(self, backend: Backend) -> Outputs:
        x = self.rng().standard_normal((self.rows, 2 * self.width), np.float32)
        x[:, 0], x[:, self.width - 1] = 200, -200
        x[::3, : self.width] *= 30
        out = Guarded(self.rows, self.width)
        return Outputs(close={"y": out.check(backend.swiglu(x, out.array))})

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        return {"y": 16 * UNIT * np.abs(reference.close["y"]) + TINY}


@dataclass(frozen=True)
class AddCase(Case):
    """add_: one rounding, so exact."""

    rows: int
    width: int

    op = "add_"

    def run(self, backend: Backend) -> Outputs:
        x, y = self.rng().standard_normal((2, self.rows, self.width), np.float32)
        total = fill_guarded(x)
        backend.add_(total.array, y)
        return Outputs({"x": total.check()})


@dataclass(frozen=True)
class EmbedCase(Case):
    """embed: rows of a stored table, widened; ids repeat."""

    rows: int
    width: int
    stored: str

    op = "embed"

    def run(self, backend: Backend) -> Outputs:
        rng = self.rng()
        raw: Array = rng.standard_normal((50, self.width), np.float32)
        if self.stored == "F16":
            raw = raw.astype(np.float16)
        elif self.stored == "BF16":
            raw = (raw.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return Outputs({"x": backend.embed(Tensor("table", raw, self.stored), rng.integers(0, 50, self.rows))})


@dataclass(frozen=True)
class StatisticsCase(Case):
    """statistics of logits [rows, vocab]. data: "normal", "sharp", "ties" (whole numbers), "banned" (half are -inf),
    "tail" (all but the last three)."""

    rows: int
    vocab: int
    data: str = "normal"

    op = "statistics"
    reason = "sums over the vocabulary in any order, then a logarithm"

    def run(self, backend: Backend) -> Outputs:
        rng = self.rng()
        logits = 3 * rng.standard_normal((self.rows, self.vocab), np.float32)
        if self.data == "ties":
            logits = np.rint(logits / 3)
        elif self.data == "banned":
            logits[:, rng.permutation(self.vocab)[: self.vocab // 2]] = -np.inf
        elif self.data == "tail":
            logits[:, :-3] = -np.inf
        elif self.data == "sharp":
            logits *= 100
        with np.errstate(invalid="ignore", divide="ignore"):
            found = backend.statistics(logits)
        close = {"logsumexp": found.logsumexp, "entropy": found.entropy}
        return Outputs({"ids": found.ids, "top": found.top, "second": found.second}, close)

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        sums = walk(self.vocab)
        top, entropy = np.abs(reference.exact["top"]), np.abs(reference.close["entropy"])
        return {"logsumexp": sums + 4 * UNIT * top, "entropy": 2 * sums * (1 + entropy) + 4 * UNIT * top}


@dataclass(frozen=True)
class ChooseCase(Case):
    """choose: the Gumbel argmax in float64, with u = 0 and a banned column among the inputs."""

    rows: int
    vocab: int
    temperature: float

    op = "choose"

    def run(self, backend: Backend) -> Outputs:
        rng = self.rng()
        logits = 3 * rng.standard_normal((self.rows, self.vocab), np.float32)
        noise = rng.random((self.rows, self.vocab))
        logits[:, 0] = -np.inf
        noise[::2, self.vocab // 2] = 0
        return Outputs({"ids": backend.choose(logits, noise, self.temperature)})


@dataclass(frozen=True)
class LayerCase(Case):
    """A whole layer, in four passes: all rows; the last rows of every segment against the stored keys and values of
    the rest; other rows in their place, of which `keep` are returned; queries that write nothing, with `keep`. Then two
    layers in one call."""

    segments: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    scheme: str
    mask: str = "full"

    op = "layer"
    scheme_matters = True
    reason = "float32: a dozen sums. Otherwise a float ulp may tip an activation into the next code, now and then"

    def weights(self, backend: Backend) -> LayerWeights:
        rng = self.rng()
        d, hd = self.heads * self.head_dim, self.head_dim

        def linear(*n: int, k: int) -> object:
            parts = [from_array(rng.standard_normal((i, k), np.float32) * np.float32(k**-0.5)) for i in n]
            return backend.prepare_linear(parts, self.scheme)

        def gain() -> F32:
            return (1 + rng.standard_normal(d, np.float32) / 10).astype(np.float32)

        cos, sin = rope_tables(hd, 10000.0, 300)
        return LayerWeights(
            attn_norm=gain(),
            qkv=linear(d, self.kv_heads * hd, self.kv_heads * hd, k=d),
            attn_out=linear(d, k=d),
            mlp_norm=gain(),
            gate_up=linear(self.mlp, self.mlp, k=d),
            down=linear(d, k=self.mlp),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=hd,
            eps=1e-5,
            cos=cos,
            sin=sin,
        )

    def run(self, backend: Backend) -> Outputs:
        w, rng = self.weights(backend), np.random.default_rng(1)
        some = masked(segment_rows(self.segments), self.mask)
        whole = masked(full_rows(some.kv_offsets), self.mask)
        x = rng.standard_normal((len(whole), self.heads * self.head_dim), np.float32)
        fresh = rng.standard_normal((len(some), x.shape[1]), np.float32)
        keep = np.arange(0, len(some), 2)
        kv = backend.allocate_kv(1, len(whole), self.kv_heads, self.head_dim)[0]
        queries = replace(some, slots=None)
        first = backend.layer(x.copy(), w, kv, whole)
        cached = backend.layer(fresh.copy(), w, kv, some)
        kept = backend.layer(-fresh, w, kv, some, keep)
        asked = backend.layer(fresh.copy(), w, kv, queries, keep)
        passes = {"whole pass": first, "cached pass": cached, "kept rows": kept, "queries": asked}
        stores = backend.allocate_kv(2, len(whole), self.kv_heads, self.head_dim)
        passes["two layers"] = backend.layers(x.copy(), [w, w], stores, whole, np.arange(0, len(whole), 3))
        return Outputs(close=passes)

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        relative = 1e-5 if self.scheme == "f32" else 2e-2
        return {key: relative * float(np.abs(y).max(initial=0)) for key, y in reference.close.items()}


@dataclass(frozen=True)
class ScoreCase(Case):
    """score: head and statistics in one. data: "normal", where the argmax is far from a tie; "ties": the second half
    of the vocabulary repeats the first, in whole numbers."""

    rows: int
    width: int
    vocab: int
    scheme: str
    data: str = "normal"

    op = "score"
    scheme_matters = True
    reason = "as linear, then as statistics"

    def run(self, backend: Backend) -> Outputs:
        rng = self.rng()
        h = rng.standard_normal((self.rows, self.width), np.float32)
        head = 3 * rng.standard_normal((self.vocab, self.width), np.float32) * np.float32(self.width**-0.5)
        if self.data == "ties":
            h, head = np.rint(h), np.rint(2 * head)
            head[self.vocab // 2 :] = head[: self.vocab - self.vocab // 2]
        found = backend.score(h, backend.prepare_linear([from_array(head)], self.scheme))
        close = {key: getattr(found, key) for key in ("top", "second", "logsumexp", "entropy")}
        return Outputs({"ids": found.ids}, close)

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        size = 8 * (walk(self.width) + walk(self.vocab))
        return {key: size * (1 + np.abs(value)) for key, value in reference.close.items()}
