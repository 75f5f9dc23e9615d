"""`dllm check`: every available backend and instruction set against the numpy reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..backend import F32, Backend
from ..decoding.canvas import full_rows
from ..decoding.loop import decode
from ..decoding.options import DecodeOptions
from ..errors import BackendUnavailable, DllmError, UsageError
from ..models import build_model
from ..models.base import Model, Tensors
from ..plugins import Registry
from .case import Case
from .cases import CASES
from .random_model import random_checkpoint
from .watch import judge

# Of the largest logit. int8: a float ulp may tip an activation into the next code, and layers pass it on.
FORWARD_TOLERANCE = {False: 1e-4, True: 5e-2}


@dataclass(frozen=True)
class CheckRow:
    """One backend, one instruction set, one operator and scheme (the worst of its cases), or one forward pass.

    `max_error` is absolute and against the reference with the same scheme, the kernel's error, where it comes nearest
    to its `tolerance`. `nmse` is against float64 without quantisation: what the scheme costs.
    """

    backend: str
    isa: str
    case: str
    exact: bool | None  # integers equal bit for bit; None: the case has none
    max_error: float | None
    nmse: float | None
    tolerance: float | None
    ok: bool
    detail: str = ""  # what is wrong


def isa_variants(backend: Backend) -> list[Backend]:
    """The backend once per instruction set that can run here.

    A backend with several offers `isa_rows() -> list[str]` and `with_isa(name) -> Backend`.
    """
    rows = getattr(backend, "isa_rows", None)
    return [backend] if rows is None else [backend.with_isa(isa) for isa in rows()]  # type: ignore[attr-defined]


def run_checks(
    registry: Registry,
    model: str | None = None,
    threads: int = 1,
    backends: Sequence[str] | None = None,
) -> list[CheckRow]:
    """Operator cases and one forward pass on all available backends, or on those named.

    model: a name or folder for the forward pass, None for a small random LLaDA. A named backend that cannot run
    here raises BackendUnavailable; otherwise it is left out. A backend that raises in a case fails that case.
    """
    from ..checkpoint import open_folder
    from ..checkpoint.packed import PackedFolder
    from ..resolve import resolve

    config: dict[str, Any]
    tensors: Tensors
    if model is None:
        config, tensors = random_checkpoint(width=96, heads=6, kv_heads=2, mlp=200, vocab=509)
    else:
        folder = open_folder(resolve(model, registry))
        if isinstance(folder, PackedFolder):
            raise UsageError(
                f"{model} is packed for scheme {folder.scheme}: the checks compare with its float32 weights",
                "give the model that was not packed",
            )
        config, tensors = folder.config, folder
    forward = Forward(config, tensors, registry)
    rows: list[CheckRow] = []
    for name in backends or sorted(registry.backends, key=lambda n: registry.backends[n].priority):
        try:
            variants = isa_variants(registry.backend(name, threads))
        except BackendUnavailable:
            if backends:
                raise
            continue
        except DllmError:
            raise
        except Exception as error:  # a plugin is somebody else's code: whatever it raises is its failure
            rows.append(_failed(name, "?", "start", error))
            continue
        for backend in variants:
            rows += summarise(check_case(backend, case) for case in CASES if case.scheme in backend.schemes)
            rows += [forward.check(backend, scheme) for scheme in backend.schemes]
    return rows


def check_case(backend: Backend, case: Case) -> tuple[Case, CheckRow]:
    """One case on one backend."""
    try:
        found = judge(case, backend)
    except Exception as error:  # see run_checks
        return case, _failed(backend.name, backend.isa, case.name, error)
    exact = found.exact if found.compared else None
    detail = "; ".join(found.problems)
    ok = not found.problems
    row = CheckRow(backend.name, backend.isa, case.name, exact, found.error, found.nmse, found.tolerance, ok, detail)
    return case, row


def summarise(results: Iterable[tuple[Case, CheckRow]]) -> list[CheckRow]:
    """One row per operator and scheme: the largest error and NMSE, and every failed case named in `detail`."""
    groups: dict[str, list[CheckRow]] = {}
    for case, row in results:
        key = f"{case.op} {case.scheme}" if case.scheme_matters else case.op
        groups.setdefault(key, []).append(row)
    return [_worst(key, rows) for key, rows in groups.items()]


def _worst(key: str, rows: list[CheckRow]) -> CheckRow:
    failed = [row for row in rows if not row.ok]
    exacts = [row.exact for row in rows if row.exact is not None]
    by_error = max(rows, key=lambda row: (not row.ok, (row.max_error or 0.0) / (row.tolerance or 1.0)))
    detail = "; ".join(f"{row.case}: {row.detail}" for row in failed[:3])
    more = f" and {len(failed) - 3} more cases" if len(failed) > 3 else ""
    return CheckRow(
        backend=rows[0].backend,
        isa=rows[0].isa,
        case=f"{key} ({len(rows)} cases)",
        exact=all(exacts) if exacts else None,
        max_error=by_error.max_error,
        nmse=max((row.nmse for row in rows if row.nmse is not None), default=None),
        tolerance=by_error.tolerance,
        ok=not failed,
        detail=detail + more,
    )


def _failed(backend: str, isa: str, case: str, error: Exception) -> CheckRow:
    return CheckRow(backend, isa, case, None, None, None, None, False, f"{type(error).__name__}: {error}")


class Forward:
    """One forward pass of one model, and in float32 a short decode, on a backend and on the reference."""

    def __init__(self, config: dict[str, Any], tensors: Tensors, registry: Registry) -> None:
        self.config, self.tensors, self.registry = config, tensors, registry
        self.expected = cache(self._expected)

    def check(self, backend: Backend, scheme: str) -> CheckRow:
        name = f"forward {scheme}"
        try:
            logits, tokens = self._run(backend, scheme)
        except Exception as fault:  # see run_checks
            return _failed(backend.name, backend.isa, name, fault)
        want, want_tokens = self.expected(scheme)
        limit = FORWARD_TOLERANCE[scheme != "f32"] * float(np.abs(want).max())
        error = float(np.abs(logits - want).max())
        truth = self.expected("f32")[0].astype(np.float64)
        nmse = float(np.square(logits - truth).sum() / np.square(truth).sum())
        same = tokens == want_tokens if scheme == "f32" else None
        problems = [] if error <= limit else [f"a logit is off by {error:.2g}, more than {limit:.2g}"]
        problems += ["decoding gives other tokens"] if same is False else []
        return CheckRow(backend.name, backend.isa, name, same, error, nmse, limit, not problems, "; ".join(problems))

    def _expected(self, scheme: str) -> tuple[F32, list[int]]:
        from dllm_numpy.backend import NumpyBackend

        return self._run(NumpyBackend(1), scheme)

    def _run(self, backend: Backend, scheme: str) -> tuple[F32, list[int]]:
        model = build_model(self.config, self.tensors, backend, scheme, self.registry)
        rng = np.random.default_rng(0)
        ids = rng.integers(0, model.facts.vocab_size, 24)
        ids[16:] = model.facts.mask_id
        tokens: list[int] = []
        if scheme == "f32":
            options = DecodeOptions(max_tokens=8, steps=4, block_length=8)
            tokens = [int(t) for step in decode(model, [ids[:16].tolist()], options) for t in step.canvas[0]]
        return all_logits(model, ids), tokens


def all_logits(model: Model, ids: np.ndarray) -> F32:
    """Logits [len(ids), vocab] of one forward pass."""
    facts, offsets = model.facts, np.array([0, len(ids)], np.int64)
    kv = model.backend.allocate_kv(facts.layers, len(ids), facts.kv_heads, facts.head_dim)
    return model.backend.linear(model.hidden(ids, kv, full_rows(offsets)), model.head)
