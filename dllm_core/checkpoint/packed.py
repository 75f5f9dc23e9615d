"""A packed model: a folder whose weights lie in one file as a backend uses them, mapped and never copied.

The file is a safetensors container. Projections are stored under their names in the graph, `layers.0.qkv.codes`, in
the arrays of `dllm_core.packing.Layout`; everything else (embedding, norms) under its checkpoint name, as stored there.
Every tensor begins at a multiple of 64 bytes of the file; `padding.N` fills the gaps. See docs/packed.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backend import Backend, Handle
from ..errors import CheckpointError, UnsupportedError, UsageError, quote
from ..models.base import Shaped
from ..packing import Layout, Packed, packs, rearrange
from ..quant import get_scheme
from ..tensors import Tensor, scattered
from .files import parse_object
from .folder import PACKED, Folder
from .shard import Shard

FORMAT, VERSION = "dllm-packed", "1"
PADDING = "padding."
STORED = {np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8", np.dtype(np.uint16): "BF16", np.dtype(np.float32): "F32"}


class PackedFolder(Folder):
    """An opened packed model. `warn` is told, once, when the weights must be rearranged for a backend."""

    def __init__(self, path: Path, warn: Callable[[str], None] = warnings.warn) -> None:
        super().__init__(path)
        self.warn: Callable[[str], None] | None = warn
        self.metadata = self.shards[0].metadata
        where = str(self.shards[0].path)
        if self.metadata.get("format") != FORMAT:
            raise CheckpointError(
                f"{where} is no packed model: its format is {quote(self.metadata.get('format'))}, not {FORMAT!r}",
                "convert the source model again",
            )
        if self.metadata.get("version") != VERSION:
            raise UnsupportedError(
                f"{where} has version {quote(self.metadata.get('version'))} of the packed format, this program "
                f"reads {VERSION}",
                "convert the source model again, or use the dllm that wrote it",
            )
        self.scheme = get_scheme(self.metadata.get("scheme", "")).name
        self.layout = Layout.parse(self.metadata.get("layout", ""))
        if self.layout.scheme != self.scheme:
            raise CheckpointError(f"{where} has scheme {self.scheme}, but its layout is {self.layout}")
        if parse_object(self.metadata.get("config", ""), f"the config of {where}") != self.config:
            raise CheckpointError(
                f"{path / 'config.json'} is not the one that {PACKED} was packed with",
                "restore it, or convert the source model again",
            )

    def _open_shards(self) -> list[Shard]:
        return [Shard(self.path / PACKED)]

    def tensor(self, name: str) -> Tensor:
        """What is no projection: the embedding, of which a pass reads a few rows, and norms."""
        tensor = super().tensor(name)
        scattered(tensor.raw)
        return tensor

    def check_scheme(self, wanted: str | None) -> str:
        """The scheme of the file; UsageError if another one is wanted."""
        if wanted not in (None, self.scheme):
            raise UsageError(
                f"{self.path} is packed for scheme {self.scheme}, not for {wanted}",
                f"drop --scheme, or convert the source model with --scheme {wanted}",
            )
        return self.scheme

    def projection(
        self, backend: Backend, scheme: str, name: str, weights: Sequence[Shaped], biases: Sequence[Shaped] = ()
    ) -> Handle:
        """The projection `name`, as `dllm_core.models.base.projection` has it, without reading it."""
        self.check_scheme(scheme)
        n, k = sum(shape[0] for _, shape in weights), weights[0][1][1]
        arrays = self._arrays(name, n, k, bool(biases))
        if not packs(backend):
            raise UnsupportedError(
                f"backend {backend.name} cannot use packed models", "give the model that was not packed"
            )
        own = backend.layout(scheme)
        if own == self.layout:
            return backend.unpack_file(arrays, Packed(own, n, k))
        if (own.version, self.layout.version) != (1, 1):
            raise UnsupportedError(
                f"{self.path} is packed as {self.layout}, which {own} cannot be made of: versions above 1 mean more "
                "than they say",
                "convert the source model again for this backend",
            )
        if self.warn is not None:
            self.warn(
                f"{self.path} is packed as {self.layout}; rearranged in memory for {own}: "
                f"convert it again with --backend {backend.name}"
            )
            self.warn = None
        return backend.unpack_file(rearrange(arrays, self.layout, own, n, k), Packed(own, n, k))

    def _arrays(self, name: str, n: int, k: int, bias: bool) -> dict[str, npt.NDArray[Any]]:
        """The mapped arrays of a weight [n, k]; CheckpointError unless they are there in type and shape."""
        found = {}
        for part, (dtype, shape) in self.layout.arrays(n, k, bias).items():
            full = f"{name}.{part}"
            entry = self.entry(full)
            if (entry.dtype, entry.shape) != (STORED[dtype], shape):
                raise CheckpointError(
                    f"tensor {full} is {entry.dtype} {list(entry.shape)}, config.json and layout {self.layout} ask "
                    f"for {STORED[dtype]} {list(shape)}",
                    "convert the source model again",
                )
            found[part] = self.shards[0].array(full, dtype)
        return found
