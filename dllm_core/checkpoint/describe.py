"""What a model folder holds and needs, from its headers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DllmError, UnsupportedError
from ..models import BUILTIN, family
from ..packing import Packed
from ..quant import SCHEMES, Scheme
from ..tensors import Tensor
from .folder import Folder, open_folder
from .packed import PADDING, PackedFolder

if TYPE_CHECKING:
    from ..plugins import Registry

SPECIAL = ("mask", "eos", "pad", "bos", "eot")


def describe(path: str | Path, registry: Registry | None = None) -> dict[str, Any]:
    """Everything `dllm inspect` prints, as JSON-ready values; no weight matrix is read.

    Keys: path, model_type, supported, reason and hint (None if supported), files, tensors, parameters, bytes,
    dtypes {name: {tensors, bytes}}, sizes {name: number}, context, special_ids, tokenizer, chat_template,
    tokenizer_problem, memory {scheme: bytes} (see `_memory`), packed (None, or scheme, layout, isa, created_by,
    source_hash and what was hashed). A packed model has the memory of its own scheme only. What an unsupported model
    does not tell is None or empty. Raises what `open_folder` raises: a damaged folder cannot be described.
    """
    folder = open_folder(path)
    entries = [folder.entry(name) for name in folder.names()]
    dtypes: dict[str, dict[str, int]] = {}
    for entry in entries:
        row = dtypes.setdefault(entry.dtype, {"tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += entry.stop - entry.start
    name = folder.config.get("model_type")
    return {
        "path": str(folder.path),
        "model_type": name if isinstance(name, str) else None,
        "files": len(folder.shards),
        "tensors": len(entries),
        "parameters": sum(entry.size for entry in entries),
        "bytes": folder.total_bytes,
        "dtypes": dict(sorted(dtypes.items())),
        "packed": _packed(folder),
        **_graph(folder, registry),
    }


def _packed(folder: Folder) -> dict[str, str] | None:
    if not isinstance(folder, PackedFolder):
        return None
    keys = ("scheme", "layout", "isa", "created_by", "source_hash", "source_hash_of")
    return {key: folder.metadata.get(key, "") for key in keys}


def _graph(folder: Folder, registry: Registry | None) -> dict[str, Any]:
    """Build the model on a backend that only weighs: config, names and shapes are checked as in earnest."""
    found: dict[str, Any] = {
        "supported": True,
        "reason": None,
        "hint": None,
        "sizes": {},
        "context": None,
        "memory": {},
    }
    special: dict[str, int | None] = dict.fromkeys(SPECIAL)
    rows = 2**31
    try:
        model, scales = _weigh(folder, registry)
    except DllmError as error:
        found |= {"supported": False, "reason": error.message, "hint": error.hint}
    else:
        facts = model.facts
        rows = facts.vocab_size
        if isinstance(folder, PackedFolder):  # stored tensors are codes and scales
            found["parameters"] = scales.parameters + _plain(folder)
        sizes = ("layers", "width", "kv_heads", "head_dim", "vocab_size")
        found |= {
            "sizes": {key: getattr(facts, key) for key in sizes},
            "context": facts.max_length,
            "memory": {scheme: _memory(folder, facts, scales, scheme) for scheme in _schemes(folder)},
        }
        special |= {"mask": facts.mask_id, "eos": facts.eos_id, "eot": facts.eot_id}
    for key in SPECIAL:
        given = folder.config.get(f"{key}_token_id")
        if special[key] is None and type(given) is int:
            special[key] = given
    return {**found, **_tokenizer(folder, rows, special), "special_ids": special}


def _tokenizer(folder: Folder, rows: int, special: dict[str, int | None]) -> dict[str, Any]:
    """Whether there is a tokenizer that works; fills in the special ids that config.json lacks."""
    from ..tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.from_folder(folder.path, rows)
    except DllmError as error:
        return {"tokenizer": True, "chat_template": None, "tokenizer_problem": error.message}
    if tokenizer is None:
        return {"tokenizer": False, "chat_template": False, "tokenizer_problem": None}
    for key in SPECIAL:
        if special[key] is None:
            special[key] = getattr(tokenizer, f"{key}_id", None)
    return {"tokenizer": True, "chat_template": tokenizer.chat_template is not None, "tokenizer_problem": None}


def _schemes(folder: Folder) -> list[str]:
    return [folder.scheme] if isinstance(folder, PackedFolder) else list(SCHEMES)


def _plain(folder: PackedFolder) -> int:
    """Parameters outside of projections: what is stored under its checkpoint name."""
    parts = (".codes", ".weights", ".scales", ".bias")
    names = [name for name in folder.names() if not name.startswith(PADDING)]
    return sum(folder.entry(name).size for name in names if not name.endswith(parts))


class _Scales:
    """Stands in for a backend: notes the shape [N, K] of every prepared projection and packs nothing."""

    name, schemes = "inspect", tuple(SCHEMES)

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.shapes: list[tuple[int, int]] = []

    @property
    def parameters(self) -> int:
        return sum(n * k for n, k in self.shapes)

    def layout(self, scheme: str) -> Any:
        """The file's own, whatever it is."""
        return getattr(self.folder, "layout", None)

    def unpack_file(self, arrays: Mapping[str, Any], meta: Packed) -> None:
        self.shapes.append((meta.n, meta.k))

    def prepare_linear(self, weights: Sequence[Tensor], scheme: str, biases: Sequence[Tensor] | None = None) -> None:
        self.shapes.append((sum(w.shape[0] for w in weights), weights[0].shape[1]))


def _weigh(folder: Folder, registry: Registry | None) -> tuple[Any, _Scales]:
    from ..models import build_model

    scales = _Scales(folder)
    backend: Any = scales
    name = family(folder.config, registry)
    try:
        return build_model(folder.config, folder, backend, _schemes(folder)[0], registry), scales
    except DllmError:
        raise
    except Exception as error:
        if name in BUILTIN:
            raise
        raise UnsupportedError(f"the plugin for {name} failed: {type(error).__name__}: {error}") from error


def _memory(folder: Folder, facts: Any, scales: _Scales, name: str) -> int:
    """Estimated bytes to run with a scheme: projections packed, keys and values of one full context in float32,
    everything that is no projection (embedding, norms) as stored."""
    scheme = SCHEMES[name]
    kv = 2 * 4 * facts.layers * facts.kv_heads * facts.head_dim * facts.max_length
    if isinstance(folder, PackedFolder):
        return folder.total_bytes + kv
    packed = sum(_packed_bytes(n, k, scheme) for n, k in scales.shapes)
    total = sum(folder.entry(tensor).size for tensor in folder.names())
    return packed + kv + folder.total_bytes * max(total - scales.parameters, 0) // max(total, 1)


def _packed_bytes(n: int, k: int, scheme: Scheme) -> int:
    scales = len(scheme.groups(k)) if scheme.quantised else 0
    return n * -(-k * scheme.bits // 8) + 4 * n * scales
