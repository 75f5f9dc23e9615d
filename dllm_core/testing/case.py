"""What a case is: inputs, one call of an operator, and how far its result may lie from the reference's."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backend import Backend

Array = npt.NDArray[Any]

UNIT = 2.0**-24  # half an ulp of 1 in float32: the relative error of one rounding
TINY = 1e-35  # absolute slack for results that are denormal or flushed to zero
CANARY = np.float32(-12345.678)
MARGIN = 64  # canary values on either side of an output


def walk(terms: int) -> float:
    """Relative error of a float32 sum of so many terms in any order: roundings add up like a random walk."""
    return (8 + 4 * terms**0.5) * UNIT


@dataclass
class Outputs:
    """Results of one case. `exact` must equal the reference's bit for bit (NaN equals NaN), `close` within bounds."""

    exact: dict[str, Array] = field(default_factory=dict)
    close: dict[str, Array] = field(default_factory=dict)


class Case(ABC):
    """One operator with one set of inputs. Subclasses are frozen dataclasses: equal fields give equal inputs."""

    op: str = ""
    scheme: str = "f32"  # what a backend must support for the case to apply
    scheme_matters: bool = False  # whether the operator depends on the scheme
    reason: str = ""  # why `bounds` are what they are

    @property
    def name(self) -> str:
        """Operator and fields, for reports."""
        values = [f"{key}={_short(value)}" for key, value in vars(self).items()]
        return f"{self.op}[{','.join(values)}]"

    def __str__(self) -> str:
        return self.name

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    @abstractmethod
    def run(self, backend: Backend) -> Outputs:
        """Run the operator on this case's inputs, with guarded outputs where the operator takes `out=`."""

    def bounds(self, reference: Outputs) -> Mapping[str, Array | float]:
        """Absolute tolerance of every `close` result, a number or one per element."""
        return {}

    def truth(self) -> Array | None:
        """The first `close` result in float64 and without quantisation: tells what the scheme costs from what the
        kernel costs."""
        return None


@dataclass(frozen=True)
class Difference:
    """A result beside the reference's. `error` and `tolerance` are absolute, at the element where their ratio is worst;
    `nmse` is the mean square error over the mean square of `Case.truth` (of the reference where there is none)."""

    compared: bool  # whether anything had to be equal bit for bit
    exact: bool
    error: float
    nmse: float
    tolerance: float
    problems: tuple[str, ...]  # empty when the case passes


@cache
def reference(case: Case) -> Outputs:
    """The case on the numpy reference, computed once."""
    from dllm_numpy.backend import NumpyBackend

    return case.run(NumpyBackend(1))


def compare(case: Case, found: Outputs) -> Difference:
    """`found` beside the reference."""
    want = reference(case)
    problems = []
    for key, array in want.exact.items():
        other = found.exact.get(key)
        if other is None or other.dtype != array.dtype or not np.array_equal(other, array, equal_nan=_floats(array)):
            problems.append(f"{key} {_where(array, other)}")
    exact, worst = not problems, (0.0, 0.0, 0.0)  # (error / bound, error, bound)
    for key, bound in case.bounds(want).items():
        got, ref = found.close[key], want.close[key]
        if got.shape != ref.shape or got.dtype != ref.dtype:
            problems.append(f"{key} is {got.dtype}{list(got.shape)}, not {ref.dtype}{list(ref.shape)}")
            continue
        error, limit = _errors(got, ref), np.broadcast_to(np.asarray(bound, np.float64), ref.shape)
        if not error.size:
            continue
        ratio = error / np.maximum(limit, np.finfo(np.float64).tiny)
        at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        worst = max(worst, (float(ratio[at]), float(error[at]), float(limit[at])))
        if ratio[at] > 1:
            where = [int(i) for i in at]
            problems.append(f"{key}{where} is {got[at]!r}, not {ref[at]!r} within {limit[at]:.2g}")
    return Difference(bool(want.exact), exact, worst[1], _nmse(case, found, want), worst[2], tuple(problems))


class Guarded:
    """A float32 output between canaries: tells a kernel that writes outside its output."""

    def __init__(self, *shape: int) -> None:
        size = int(np.prod(shape))
        self.whole = np.full(size + 2 * MARGIN, CANARY, np.float32)
        self.array = self.whole[MARGIN : MARGIN + size].reshape(shape)

    def check(self, returned: Array | None = None) -> Array:
        """The output; ValueError if a canary is gone or `returned` is another array."""
        edges = np.concatenate([self.whole[:MARGIN], self.whole[-MARGIN:]])
        if not np.all(edges == CANARY):
            raise ValueError("the kernel wrote outside its output")
        if returned is not None and not (np.shares_memory(returned, self.array) or self.array.size == 0):
            raise ValueError("the operator did not use the output it was given")
        return self.array.copy()


def fill_guarded(values: Array) -> Guarded:
    """A guarded array that holds `values`, for operators that work in place."""
    guarded = Guarded(*values.shape)
    guarded.array[...] = values
    return guarded


def _errors(got: Array, want: Array) -> npt.NDArray[np.float64]:
    """|got - want| in float64; 0 where both are NaN or the same infinity, infinity where only one is."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def _nmse(case: Case, found: Outputs, want: Outputs) -> float:
    if not want.close:
        return 0.0
    key = next(iter(want.close))
    truth = case.truth()
    truth = want.close[key] if truth is None else truth
    got = found.close[key]
    if got.shape != truth.shape:
        return float("inf")
    finite = np.isfinite(truth) & np.isfinite(want.close[key])
    power = np.square(truth[finite].astype(np.float64)).sum()
    with np.errstate(over="ignore"):
        noise = np.square(got[finite].astype(np.float64) - truth[finite].astype(np.float64)).sum()
    return float(noise / power) if power > 0 else 0.0


def _floats(array: Array) -> bool:
    return array.dtype.kind == "f"


def _where(want: Array, got: Array | None) -> str:
    if got is None:
        return "is missing"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    wrong = (got != want) & ~((want != want) & (got != got))
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"differ at {int(wrong.sum())} of {want.size} places, first {list(at)}: {got[at]} is not {want[at]}"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join("/".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in value)
    return str(value)
