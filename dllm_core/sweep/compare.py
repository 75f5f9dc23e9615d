"""When an answer counts as right. Each is a pure function (expected, text) -> bool; COMPARE names them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

# a sign counts where it cannot be a minus between two numbers; commas only as thousands separators
NUMBER = re.compile(r"(?:(?<![\w.)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)


def exact(expected: str, text: str) -> bool:
    """Character for character."""
    return text == expected


def contains(expected: str, text: str) -> bool:
    """The expected answer stands somewhere in the text."""
    return expected in text


def as_json(expected: str, text: str) -> bool:
    """Both are JSON of the same value: the order of keys, blanks and the spelling of numbers do not matter."""
    try:
        return _canonical(text) == _canonical(expected)
    except (ValueError, RecursionError):
        return False


def number(expected: str, text: str) -> bool:
    """The last number of the text has the expected value."""
    found = NUMBER.findall(text)
    return bool(found) and _decimal(found[-1]) == _decimal(expected)


def regex(expected: str, text: str) -> bool:
    """The expected answer is a regular expression that is found in the text."""
    return re.search(expected, text) is not None


COMPARE: dict[str, Callable[[str, str], bool]] = {
    "exact": exact,
    "contains": contains,
    "json": as_json,
    "number": number,
    "regex": regex,
}


def fault(compare: str, expected: str) -> str | None:
    """Why `expected` can never be compared in this way; None if it can."""
    try:
        if compare == "json":
            _canonical(expected)
        elif compare == "number" and NUMBER.fullmatch(expected.strip()) is None:
            return "the answer is no number"
        elif compare == "regex":
            re.compile(expected)
    except (ValueError, RecursionError, re.error) as error:
        return f"the answer is no {'JSON' if compare == 'json' else 'regular expression'}: {error}"
    return None


def _canonical(text: str) -> str:
    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    def real(digits: str) -> float | int:
        value = float(digits)
        return int(value) if value.is_integer() else value

    return json.dumps(json.loads(text, parse_float=real, parse_constant=no_constant), sort_keys=True)


def _decimal(digits: str) -> Decimal:
    return Decimal(digits.strip().replace(",", ""))
