"""`dllm inspect`: what a model folder holds and needs, from its headers."""

from __future__ import annotations

from typing import Any

import click

from .options import MODEL, json_option
from .output import write_json, write_table


@click.command(short_help="Describe a model folder.")
@click.argument("model", type=MODEL, metavar="NAME|FOLDER")
@json_option
def command(model: str, as_json: bool) -> None:
    """Describe a model: family, sizes, stored types, special ids, tokenizer, memory per scheme. Reads no weights."""
    from ..checkpoint.describe import describe
    from ..plugins import load_registry
    from ..resolve import resolve

    registry = load_registry()
    facts = describe(resolve(model, registry), registry)
    if as_json:
        write_json({"model": model, **facts})
    else:
        write_table(["", ""], [(name, value) for name, value in lines(facts) if value], header=False)


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of every line."""
    support = "yes" if facts["supported"] else f"no: {facts['reason']}"
    if facts["hint"]:
        support += f" ({facts['hint']})"
    stored = [f"{name} {row['tensors']} tensors {size(row['bytes'])}" for name, row in facts["dtypes"].items()]
    words = "yes" if facts["tokenizer"] else "none: give --prompt-ids"
    if facts["tokenizer_problem"]:
        words = f"broken: {facts['tokenizer_problem']}"
    elif facts["tokenizer"]:
        words += ", with chat template" if facts["chat_template"] else ", without chat template"
    return [
        ("path", facts["path"]),
        ("family", facts["model_type"] or "not given"),
        ("supported", support),
        ("parameters", f"{facts['parameters']:,} in {facts['tensors']} tensors, {_count(facts['files'], 'file')}"),
        ("stored", ", ".join(stored)),
        (
            "packed",
            ", ".join(f"{key} {facts['packed'][key]}" for key in ("layout", "created_by")) if facts["packed"] else "",
        ),
        ("sizes", ", ".join(f"{key} {value}" for key, value in facts["sizes"].items())),
        ("context", f"{facts['context']} tokens, prompt and canvas together" if facts["context"] else ""),
        ("special ids", ", ".join(f"{key} {i}" for key, i in facts["special_ids"].items() if i is not None)),
        ("tokenizer", words),
        ("memory", "\n".join(f"{size(b):>9}  {scheme}" for scheme, b in facts["memory"].items())),
    ]


def size(count: int) -> str:
    """Bytes for people: 5.6 MiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"
