"""For backends with a packed layout: say where the numbers lie, and packing, model files and checks follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dllm_core.backend import F32, Handle
from dllm_core.packing import Packed
from dllm_core.quant import QuantisedWeight
from dllm_core.tensors import Tensor

from .backend import NumpyBackend, NumpyLinear


@dataclass(frozen=True)
class Panels:
    """A weight [n, k] in the layout `meta.layout`: P panels of C outputs, S steps of D inputs, G groups of inputs."""

    arrays: Mapping[str, npt.NDArray[Any]]
    meta: Packed

    @property
    def values(self) -> npt.NDArray[Any]:
        """Codes or weights [P, S, C, D] as they are stored (int4: D / 2 bytes)."""
        body = self.arrays["codes" if self.meta.layout.how.quantised else "weights"]
        columns = self.meta.layout.columns
        steps = self.meta.layout.steps(self.meta.k)[0]
        return body.reshape(-(-self.meta.n // columns), steps, columns, -1)

    @property
    def scales(self) -> F32:
        """[P, G, C], zero beyond n; only where there are codes."""
        columns = self.meta.layout.columns
        return self.arrays["scales"].reshape(-(-self.meta.n // columns), -1, columns)

    @property
    def bias(self) -> F32 | None:
        """[P, C], zero beyond n; None where the projection has none."""
        return self.arrays["bias"].reshape(-1, self.meta.layout.columns) if "bias" in self.arrays else None


class PanelBackend(NumpyBackend):
    """The reference on weights in panels. A subclass overrides `layout`, and `linear`, whose handles are `Panels`."""

    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> Handle:
        rows = super().prepare_linear(weights, scheme, biases)
        values, scales = super().unpack_linear(rows)
        found = {"weights": values} if scales is None else {"codes": values, "scales": scales}
        if rows.bias is not None:
            found["bias"] = rows.bias
        layout = self.layout(scheme)
        return Panels(layout.write(found, *values.shape), Packed(layout, *values.shape))

    def rows(self, handle: Panels) -> NumpyLinear:
        """A row-major copy, as the reference has it."""
        found, how = handle.meta.layout.read(handle.arrays, handle.meta.n, handle.meta.k), handle.meta.layout.how
        weight = QuantisedWeight(found["codes"], found["scales"], how) if how.quantised else found["weights"]
        return NumpyLinear(weight, found.get("bias"), how)

    def unpack_linear(self, handle: Panels) -> tuple[npt.NDArray[Any], F32 | None]:
        return super().unpack_linear(self.rows(handle))

    def linear_bytes(self, handle: Panels) -> int:
        return sum(array.nbytes for array in handle.arrays.values())

    def pack(self, handle: Panels) -> dict[str, npt.NDArray[Any]]:
        return dict(handle.arrays)

    def unpack_file(self, arrays: Mapping[str, npt.NDArray[Any]], meta: Packed) -> Handle:
        return Panels(dict(arrays), meta)

    def linear(self, x: F32, w: Panels, out: F32 | None = None) -> F32:
        return super().linear(x, self.rows(w), out)

    def accumulators(self, x: F32, w: Panels) -> tuple[npt.NDArray[np.int8], F32, npt.NDArray[np.int32]]:
        return super().accumulators(x, self.rows(w))
