"""A Hugging Face model folder: config.json and model.safetensors, whole or in shards with an index."""

from __future__ import annotations

import difflib
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ..errors import CheckpointError, NotFoundError, UnsupportedError, quote
from ..tensors import Tensor
from .files import read_object, require_file
from .shard import Entry, Shard

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PACKED = "model.dllm.safetensors"
WHAT = f"a model is a folder with config.json and {SINGLE}, or shards with {INDEX}"


class Folder:
    """An opened model folder: `config` is read, headers are checked, weights stay on disk until they are used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_object(path / "config.json")
        self.shards = self._open_shards()
        self._shard_of: dict[str, Shard] = {}
        for shard in self.shards:
            for name in shard.entries:
                if name in self._shard_of:
                    other = self._shard_of[name].path.name
                    raise CheckpointError(
                        f"{path}: tensor {quote(name)} is both in {other} and in {shard.path.name}",
                        "the folder mixes two checkpoints: download the model again",
                    )
                self._shard_of[name] = shard

    def _open_shards(self) -> list[Shard]:
        return _find_shards(self.path)

    def names(self) -> list[str]:
        """All tensor names, in order of files and headers."""
        return list(self._shard_of)

    def entry(self, name: str) -> Entry:
        """Stored type, shape and place of the tensor `name`."""
        return self._shard(name).entries[name]

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`, memory-mapped; CheckpointError if there is none."""
        return self._shard(name).tensor(name)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(e.stop - e.start for shard in self.shards for e in shard.entries.values())

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, {} where the folder has none."""
        path = self.path / "generation_config.json"
        return read_object(path) if path.exists() else {}

    def _shard(self, name: str) -> Shard:
        if name not in self._shard_of:
            near = difflib.get_close_matches(name, self.names()[:2000], 1)
            hint = f"the nearest of its {len(self._shard_of)} tensors is {quote(near[0])}" if near else None
            raise CheckpointError(f"{self.path} has no tensor {quote(name)}", hint)
        return self._shard_of[name]


def open_folder(path: str | Path) -> Folder:
    """Open a model folder and check everything but the weights' values. A packed model (packed.py) may also be given
    by its file.

    NotFoundError for what is missing, UnsupportedError for other kinds of checkpoint, CheckpointError for files
    that are damaged or contradict each other.
    """
    path = Path(path)
    if path.name == PACKED and path.is_file():
        path = path.parent
    if path.is_file():
        hint = f"give its folder: {path.parent}" if path.suffix == ".safetensors" else WHAT
        raise UnsupportedError(f"{path} is a file, not a model folder", hint)
    if not path.is_dir():
        raise NotFoundError(f"model folder {path} does not exist", WHAT)
    require_file(path / "config.json", WHAT)
    if (path / PACKED).exists():
        from .packed import PackedFolder

        return PackedFolder(path)
    return Folder(path)


def _find_shards(path: Path) -> list[Shard]:
    if (path / SINGLE).exists() or (path / SINGLE).is_symlink():
        return [Shard(path / SINGLE)]
    if not (path / INDEX).exists():
        raise _no_weights(path)
    weight_map = read_object(path / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path / INDEX}: weight_map is {quote(weight_map)}, not file names by tensor")
    files: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        files.setdefault(_shard_name(file, tensor, path), []).append(tensor)
    shards = []
    for file in sorted(files):
        shard = Shard(path / file)
        for tensor in files[file]:
            if tensor not in shard.entries:
                raise CheckpointError(
                    f"{path / INDEX} puts tensor {quote(tensor)} into {file}, which does not hold it",
                    "index and shards are from different checkpoints: download the model again",
                )
        shards.append(shard)
    return shards


def _shard_name(file: Any, tensor: str, path: Path) -> str:
    """The file name, if it names a safetensors file in the folder itself: an index must not lead elsewhere."""
    where = f"{path / INDEX}: tensor {quote(tensor)} is in {quote(file)}"
    plain = isinstance(file, str) and PurePosixPath(file).name == PureWindowsPath(file).name == file
    if not plain or "\0" in file:
        raise CheckpointError(f"{where}, which is not the name of a file in this folder")
    if not file.endswith(".safetensors"):
        raise UnsupportedError(f"{where}, which is no safetensors file", "convert the model to safetensors")
    return file


def _no_weights(path: Path) -> Exception:
    """The most helpful error for a folder without weights that we can read."""
    try:
        files = sorted(p.name for p in path.iterdir())
    except OSError as error:
        return CheckpointError(f"cannot list {path}: {error.strerror or error}")
    pickled = [f for f in files if f.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    other = [f for f in files if f.endswith(".safetensors")]
    if other:
        return NotFoundError(
            f"{path} has {quote(other[0])} but neither {SINGLE} nor {INDEX}",
            f"rename a single file to {SINGLE}; shards need their {INDEX}: download it too",
        )
    if pickled:
        return UnsupportedError(
            f"{path} has only pickled weights ({quote(pickled[0])}), which can run code when they are read",
            "convert the model to safetensors",
        )
    return NotFoundError(f"{path} has no {SINGLE}", WHAT)
