"""`dllm convert`: write a packed model, tensor by tensor and all or nothing."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..backend import Backend, Handle
from ..errors import DllmError, DoesNotFitError, UnsupportedError, UsageError
from ..models import build_model, family
from ..models.base import Shaped, fetch, projection
from ..packing import LINE, packs
from ..tensors import Tensor, forget
from .folder import PACKED, Folder, open_folder
from .packed import FORMAT, PADDING, STORED, VERSION, PackedFolder

if TYPE_CHECKING:
    from ..plugins import Registry

COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
TOKENIZER = COPIED[2:]
SMALL = 64 << 20  # sources up to here are hashed whole
PIECE = 16 << 20  # bytes of a tensor that are copied at a time


@dataclass(frozen=True)
class Converted:
    """What was written."""

    path: str
    scheme: str
    layout: str
    source_bytes: int
    bytes: int
    tensors: int


def convert(
    source: Path,
    target: Path,
    backend: Backend,
    scheme: str,
    *,
    force: bool = False,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Converted:
    """Pack the model in the folder `source` for `backend` and write it to the new folder `target`.

    Needs the memory of one projection. `target` appears whole or not at all; an existing packed model is replaced
    with `force` only. UsageError for a target that is in the way, DoesNotFitError if the disk is too small, and
    what `open_folder` and `build_model` raise.
    """
    folder = open_folder(source)
    if not packs(backend):
        raise UnsupportedError(f"backend {backend.name} cannot write packed models", "choose another --backend")
    target = Path(os.path.realpath(target))
    _check_target(target, force)
    plan = _Plan(folder)
    build_model(folder.config, plan, backend, scheme, registry)  # names, shapes and config, before anything is written
    if not plan.projections:
        raise UnsupportedError(f"models of family {family(folder.config, registry)} cannot be packed")
    header = plan.header(_metadata(folder, backend, scheme))
    copied = [folder.path / name for name in COPIED if (folder.path / name).is_file()]
    _check_disk(target, len(header) + plan.size + sum(path.stat().st_size for path in copied))
    with _staging(target) as (staging, file):
        writer = _Writer(folder, file, plan, header)
        build_model(folder.config, writer, backend, scheme, registry, progress)
        writer.finish()
        for path in copied:
            shutil.copyfile(path, staging / path.name)
    total = len(header) + plan.size
    return Converted(str(target), scheme, str(backend.layout(scheme)), folder.total_bytes, total, len(plan.entries))


class _Plan:
    """A source of tensors that reads and packs nothing: it notes what the graph asks for and where it will lie."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.projections = 0
        self.entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}  # dtype, shape, start, stop in the data
        self.size = 0

    def names(self) -> list[str]:
        return self.folder.names()

    def tensor(self, name: str) -> Tensor:
        if name not in self.entries:
            entry = self.folder.entry(name)
            self._add(name, entry.dtype, entry.shape, entry.stop - entry.start)
        return self.folder.tensor(name)

    def projection(
        self, backend: Backend, scheme: str, name: str, weights: Sequence[Shaped], biases: Sequence[Shaped] = ()
    ) -> Handle:
        if isinstance(self.folder, PackedFolder):
            self.folder.check_scheme(scheme)
        else:
            for source, wanted in (*weights, *biases):
                fetch(self.folder, source, wanted)
        n, k = sum(shape[0] for _, shape in weights), weights[0][1][1]
        for part, (dtype, shape) in backend.layout(scheme).arrays(n, k, bool(biases)).items():
            self._add(f"{name}.{part}", STORED[dtype], shape, int(np.prod(shape)) * dtype.itemsize)
        self.projections += 1

    def _add(self, name: str, dtype: str, shape: tuple[int, ...], count: int) -> None:
        gap = -self.size % LINE
        if gap:
            self.entries[f"{PADDING}{len(self.entries)}"] = ("U8", (gap,), self.size, self.size + gap)
            self.size += gap
        self.entries[name] = (dtype, shape, self.size, self.size + count)
        self.size += count

    def header(self, metadata: dict[str, str]) -> bytes:
        """The head of the file: length and JSON, padded with blanks so that the data begins at a multiple of 64."""
        described: dict[str, Any] = {"__metadata__": metadata}
        for name, (dtype, shape, start, stop) in self.entries.items():
            described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % LINE)
        return len(text).to_bytes(8, "little") + text


class _Writer:
    """A source of tensors that writes what the graph asks for, each to its place, and keeps nothing."""

    def __init__(self, folder: Folder, file: BinaryIO, plan: _Plan, header: bytes) -> None:
        self.folder, self.file, self.plan, self.base = folder, file, plan, len(header)
        self.missing = {name for name in plan.entries if not name.startswith(PADDING)}
        _reserve(file, self.base + plan.size)
        file.write(header)

    def names(self) -> list[str]:
        return self.folder.names()

    def tensor(self, name: str) -> Tensor:
        tensor = self.folder.tensor(name)
        if name in self.missing:
            self._write(name, tensor.raw)
        return tensor

    def projection(
        self, backend: Backend, scheme: str, name: str, weights: Sequence[Shaped], biases: Sequence[Shaped] = ()
    ) -> Handle:
        arrays = backend.pack(projection(self.folder, backend, scheme, name, weights, biases))
        n, k = sum(shape[0] for _, shape in weights), weights[0][1][1]
        for part in backend.layout(scheme).arrays(n, k, bool(biases)):
            self._write(f"{name}.{part}", arrays[part])

    def _write(self, name: str, array: npt.NDArray[Any]) -> None:
        start, stop = self.plan.entries[name][2:]
        data = array.reshape(-1).view(np.uint8)
        if data.nbytes != stop - start:
            raise DllmError(f"the backend packs {name} into {data.nbytes} bytes, its layout says {stop - start}")
        self.file.seek(self.base + start)
        for at in range(0, data.nbytes, PIECE):
            self.file.write(data[at : at + PIECE].data)
            forget(data[at : at + PIECE])
        self.missing.remove(name)

    def finish(self) -> None:
        if self.missing:
            raise DllmError(f"the graph did not ask for {sorted(self.missing)[0]} a second time")


# ---- the file system ----


def _check_target(target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not force:
        raise UsageError(f"{target} exists already", "choose another name, or replace it with --force")
    if not target.is_dir() or (any(target.iterdir()) and not (target / PACKED).is_file()):
        raise UsageError(f"{target} is no packed model, --force does not replace it", "choose another name")


def _check_disk(target: Path, need: int) -> None:
    place = next(parent for parent in target.parents if parent.is_dir())
    free = shutil.disk_usage(place).free
    if free < need:
        raise DoesNotFitError(
            f"the packed model takes {need:,} bytes, {place} has {free:,} free", "free some space, or write elsewhere"
        )


def _reserve(file: BinaryIO, size: int) -> None:
    """Take the disk space now: a full disk is an error before the work, not after half of it."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    file.truncate(size)


@contextmanager
def _staging(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A hidden folder beside `target`, with its weights file open, that becomes `target` at the end.

    An exception removes the folder. What a killed process left is taken over by the next conversion; the lock on
    the file tells whether that process still lives.
    """
    staging = target.with_name(f".{target.name}.partial")
    staging.mkdir(parents=True, exist_ok=True)
    weights = staging / PACKED
    weights.touch()
    with weights.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another conversion to {target} is running", "wait for it") from None
        try:
            file.truncate(0)
            for path in staging.iterdir():
                if path != weights:
                    path.unlink()
            yield staging, file
            file.flush()
            _publish(staging, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def _publish(staging: Path, target: Path) -> None:
    """Everything to the disk, then one rename (two where `target` is replaced)."""
    for path in [*staging.iterdir(), staging]:
        _sync(path)
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    staging.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    _sync(target.parent)


def _sync(path: Path) -> None:
    """To the disk, and out of the cache: what is written lies there in small pages, the first run that reads it again
    gets huge ones (measured: a tenth of the speed of a step)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise") and path.is_file():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


# ---- metadata ----


def _metadata(folder: Folder, backend: Backend, scheme: str) -> dict[str, str]:
    """What the file says of itself, as texts."""
    tokenizer = hashlib.sha256()
    for name in TOKENIZER:
        if (folder.path / name).is_file():
            tokenizer.update(name.encode() + (folder.path / name).read_bytes())
    of, digest = _source_hash(folder)
    layout = backend.layout(scheme)
    return {
        "format": FORMAT,
        "version": VERSION,
        "scheme": scheme,
        "layout": str(layout),
        "isa": layout.isa,
        "family": str(folder.config.get("model_type")),
        "config": json.dumps(folder.config),
        "tokenizer_hash": tokenizer.hexdigest(),
        "source_hash": digest,
        "source_hash_of": of,
        "created_by": f"dllm {__version__}",
    }


def _source_hash(folder: Folder) -> tuple[str, str]:
    """(what was hashed, SHA-256): whole files where the model is small, else their headers, sizes and times."""
    whole = folder.total_bytes <= SMALL
    digest = hashlib.sha256(json.dumps(folder.config, sort_keys=True).encode())
    for shard in folder.shards:
        facts = shard.path.stat()
        digest.update(shard.path.name.encode())
        with shard.path.open("rb") as file:
            if whole:
                digest.update(file.read())
            else:
                digest.update(file.read(8 + int.from_bytes(file.read(8), "little")))
                digest.update(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    return "contents" if whole else "headers, sizes and times", digest.hexdigest()
