"""Reading config.json: the file is somebody else's, so every value is checked and every refusal names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedError, quote

# The rotary tables are built for all positions at once: 1 GB at this length and heads of 128.
LONGEST = 2**20


class Numbers:
    """Numbers of config.json, checked one by one: the file is somebody else's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        value = default if value is None else value
        if value is None:
            raise UnsupportedError(f"config.json lacks {key}")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise UnsupportedError(f"config.json: {key}={quote(value)} must be a positive whole number")
        return value

    def identifier(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise UnsupportedError(f"config.json: {key}={quote(value)} must be a token id")
        return value

    def flag(self, key: str) -> bool:
        value = self._get(key, False)
        if not isinstance(value, bool):
            raise UnsupportedError(f"config.json: {key}={quote(value)} must be true or false")
        return value

    def real(self, key: str, default: float) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 < value < 1e30:
            raise UnsupportedError(f"config.json: {key}={quote(value)} must be a positive number")
        return float(value)


def check_heads(width: int, heads: int, kv_heads: int, names: tuple[str, str, str]) -> None:
    """The relations between sizes that attention relies on; `names` are the config's own keys."""
    if width % heads or (width // heads) % 2:
        raise UnsupportedError(
            f"config.json: {names[0]}={width} does not divide into {names[1]}={heads} heads of even width"
        )
    if heads % kv_heads:
        raise UnsupportedError(f"config.json: {names[1]}={heads} is no multiple of {names[2]}={kv_heads}")


def check_ids(ids: Mapping[str, int], rows: int) -> None:
    """Special token ids must be rows of the embedding."""
    for key, value in ids.items():
        if not 0 <= value < rows:
            raise UnsupportedError(f"config.json: {key}={value} is outside the {rows} rows of the embedding")


def check_length(key: str, value: int) -> None:
    if value > LONGEST:
        raise UnsupportedError(f"config.json: {key}={value} is above the {LONGEST} supported")
