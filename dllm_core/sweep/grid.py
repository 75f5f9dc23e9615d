"""Which settings a sweep tries: two tables, and the same notation in TOML files."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decoding.options import DecodeOptions
from ..errors import DllmError, NotFoundError, UsageError, quote
from .tasks import digest

if TYPE_CHECKING:
    from ..api import Engine

# (group, name, options). A list makes a setting of each of its values; the name may mention options in braces.
# Beside the fields of DecodeOptions: `strategy`; `tokens_per_pass`, which sets the steps; block_length "canvas" is
# the whole canvas in one block.
Row = tuple[str, str, dict[str, Any]]

PURE = {"commit": "quota", "eos": "keep", "block_length": "canvas"}  # the authors' fixed number of passes
BLOCKS = {"commit": "quota", "eos": "keep", "block_length": 8}
STOP = {"block_length": 8, "eos": "stop"}
QUOTA = {**STOP, "commit": "quota"}
BOUND = {**STOP, "commit": "entropy-bound"}
EXIT = {**STOP, "commit": "entropy-exit"}
COUNTS = [1, 2, 4, 8]

DEFAULT: tuple[Row, ...] = (
    ("pure diffusion", "pure, {tokens_per_pass} a pass", {**PURE, "tokens_per_pass": COUNTS}),
    ("blocks", "blocks, {tokens_per_pass} a pass", {**BLOCKS, "tokens_per_pass": COUNTS}),
    ("quota", "quota {tokens_per_pass}", {**QUOTA, "tokens_per_pass": COUNTS}),
    ("quota", "cosine {tokens_per_pass}", {**QUOTA, "schedule": "cosine", "tokens_per_pass": [2, 4]}),
    ("quota", "{remasking} 2", {**QUOTA, "tokens_per_pass": 2, "remasking": ["margin", "entropy", "random"]}),
    ("threshold", "threshold {threshold}", {**STOP, "threshold": [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]}),
    ("threshold", "pure, threshold {threshold}", {**STOP, "block_length": "canvas", "threshold": [0.7, 0.9]}),
    ("factor", "factor {factor}", {**STOP, "factor": [0.25, 0.5, 1.0, 2.0]}),
    ("entropy", "bound {gamma}", {**BOUND, "gamma": [0.01, 0.1, 0.5, 1.0]}),
    ("entropy", "exit {gamma}", {**EXIT, "gamma": [0.01, 0.1, 0.5]}),
    ("cache", "{cache}, quota 1", {**QUOTA, "tokens_per_pass": 1, "cache": ["prefix", "dual", "interstep"]}),
    ("cache", "interstep every {refresh}", {**QUOTA, "tokens_per_pass": 1, "cache": "interstep", "refresh": [2, 8]}),
    ("cache", "{cache}, threshold 0.9", {**STOP, "threshold": 0.9, "cache": ["prefix", "dual", "interstep"]}),
    ("revoke", "revoke, threshold {threshold}", {**STOP, "threshold": [0.5, 0.7, 0.9], "revoke": "confidence"}),
    ("revoke", "remdm {tokens_per_pass}", {**QUOTA, "tokens_per_pass": [1, 2], "revoke": "remdm"}),
    ("EOS", "threshold 0.9, eos keep", {**STOP, "threshold": 0.9, "eos": "keep"}),
    ("EOS", "threshold 0.9, grow", {**STOP, "threshold": 0.9, "grow": True}),
    ("EOS", "pure, ends last", {**PURE, "tokens_per_pass": 1, "confidence_eos_eot_inf": True}),
)

QUICK: tuple[Row, ...] = (
    ("quota", "quota {tokens_per_pass}", {**QUOTA, "tokens_per_pass": COUNTS}),
    ("threshold", "threshold {threshold}", {**STOP, "threshold": [0.5, 0.7, 0.9]}),
)

GRIDS = {"default": DEFAULT, "quick": QUICK}
STRATEGIES_GROUP = "strategies"  # every grid of the program begins with all named strategies
LISTS = {"stop": str, "suppress_ids": int}  # options whose value is a list, and of what


@dataclass(frozen=True)
class Setting:
    """One cell of the grid. `given` are arguments of `Engine.options`, `options` what they come to for the model."""

    name: str
    group: str
    given: dict[str, Any]
    options: DecodeOptions | None = None


@dataclass(frozen=True)
class Grid:
    name: str
    settings: list[Setting]

    def digest(self) -> str:
        return digest([[s.name, s.group, asdict(s.options) if s.options else s.given] for s in self.settings])


def load_grid(reference: str, engine: Engine) -> Grid:
    """The grid called `reference`, or that of a TOML file, checked against the model before anything runs."""
    if reference in GRIDS:
        named: list[Row] = [(STRATEGIES_GROUP, name, {"strategy": name}) for name in engine.strategies]
        rows: Iterable[Row] = [*named, *GRIDS[reference]]
        title = reference
    else:
        title, rows = _read_toml(Path(reference))
    settings = [resolved(setting, engine) for row in rows for setting in expand(*row)]
    names = [s.name for s in settings]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(
            f"grid {title}: two settings are called {twice[0]!r}", "mention what differs, as in {threshold}"
        )
    if not settings:
        raise UsageError(f"grid {title} has no settings", "write [[setting]] and options below it")
    return Grid(title, settings)


def expand(group: str, name: str, options: Mapping[str, Any]) -> list[Setting]:
    """One setting of each combination of the listed values, the last list turning fastest."""
    many = [key for key, value in options.items() if isinstance(value, list) and key not in LISTS]
    settings = []
    for values in itertools.product(*(options[key] for key in many)):
        given = {**options, **dict(zip(many, values, strict=True))}
        title = name
        for key, value in given.items():
            title = title.replace("{" + key + "}", str(value))
        settings.append(Setting(title, group, given))
    return settings


def resolved(setting: Setting, engine: Engine) -> Setting:
    """The setting with `tokens_per_pass` and "canvas" replaced by numbers, and its full options."""
    given = dict(setting.given)
    try:
        per_pass = given.pop("tokens_per_pass", None)
        canvas = given.get("max_tokens", engine.options(given.get("strategy")).max_tokens)
        if given.get("block_length") == "canvas":
            given["block_length"] = canvas
        if per_pass is not None:
            if not isinstance(per_pass, int) or isinstance(per_pass, bool) or per_pass < 1:
                raise UsageError(f"tokens_per_pass is {quote(per_pass)}", "it must be a whole number of at least 1")
            if "steps" in given:
                raise UsageError("steps and tokens_per_pass exclude each other")
            blocks = engine.options(**{**given, "steps": canvas}).blocks
            given["steps"] = max(-(-canvas // per_pass), blocks)  # a block takes one pass at least
        return replace(setting, given=given, options=engine.options(**given))
    except DllmError as error:
        raise type(error)(f"grid setting {setting.name!r}: {error.message}", error.hint) from error


def _read_toml(path: Path) -> tuple[str, list[Row]]:
    """[[setting]] tables: `name` and `group` are optional, everything else is an option."""
    where = f"grid {quote(str(path))}"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(GRIDS)
        raise NotFoundError(f"{where}: {error.strerror}", f"known grids: {names}; or a TOML file") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is no TOML: {error}") from error
    tables, title = data.get("setting"), data.get("name", path.stem)
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables) or set(data) - {"setting", "name"}:
        raise UsageError(f"{where} is no list of settings", "write [[setting]] and options below it")
    return str(title), [_row(table, where) for table in tables]


def _row(table: dict[str, Any], where: str) -> Row:
    options = {k: v for k, v in table.items() if k not in ("name", "group")}
    for key in ("name", "group"):
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{where}: {key} is {quote(table[key])}, no text")
    for key, kind in LISTS.items():
        value = options.get(key, [])
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise UsageError(f"{where}: {key} is {quote(value)}", f"it must be a list of {kind.__name__}")
    named = ", ".join(f"{key} {{{key}}}" for key in options) or "defaults"
    return table.get("group", "grid"), table.get("name", named), options
