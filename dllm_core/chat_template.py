"""Chat templates: jinja text that comes with a model, rendered in a sandbox with bounded work and output.

The environment is the one templates are written for (huggingface/transformers, chat_template_utils): trimmed
blocks, loop controls, `raise_exception`, `strftime_now` and a `tojson` that leaves characters as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

from .errors import CheckpointError

OUTPUT_LIMIT = 4 << 20  # characters; the longest context in use is far below
STEP_LIMIT = 1_000_000  # loop rounds and calls of one rendering


def render(source: str, where: str, variables: dict[str, Any]) -> str:
    """Render the template `source` with `variables`; CheckpointError in one line, naming `where`, for any fault."""
    try:
        environment = _Environment()
        tree = _Guards().visit(environment.parse(source))
        tree.set_environment(environment)
        parts, length = [], 0
        for part in environment.from_string(tree).generate(**variables):
            length += len(part)
            if length > OUTPUT_LIMIT:
                raise SecurityError(f"the text is longer than {OUTPUT_LIMIT} characters")
            parts.append(part)
        return "".join(parts)
    except TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
    except (TemplateError, RecursionError, MemoryError) as error:
        reason = getattr(error, "message", None) or str(error) or type(error).__name__
    except Exception as error:  # the template may divide by zero, add a list to a text, ...
        reason = f"{type(error).__name__}: {error}"
    one_line = " ".join(reason.split())[:200]
    raise CheckpointError(f"chat template in {where}: {one_line}", "--no-chat sends the prompt without a template")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which also counts steps and refuses oversized values. One object renders once."""

    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self) -> None:
        # optimized=False: nothing is computed while compiling, where no limit holds
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"])
        self.steps = 0
        self.filters |= {"tojson": _tojson, "_counted": self.counted, "_joined": self.joined}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def step(self) -> None:
        self.steps += 1
        if self.steps > STEP_LIMIT:
            raise SecurityError(f"more than {STEP_LIMIT} steps")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def joined(self, items: list[Any]) -> str:
        texts = [str(item) for item in items]
        return self.sized("".join(texts), sum(map(len, texts)))

    def sized(self, value: Any, length: int) -> Any:
        if length > OUTPUT_LIMIT:
            raise SecurityError(f"a value is longer than {OUTPUT_LIMIT}")
        return value

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for a, b in ((left, right), (right, left)):
            if operator == "*" and isinstance(a, str | list | tuple) and isinstance(b, int):
                self.sized(None, len(a) * max(b, 0))
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.sized(None, len(left) + len(right))
        if operator in ("*", "**") and any(isinstance(v, int) and abs(v) > 2**53 for v in (left, right)):
            raise SecurityError("a number is too large")
        if operator == "**" and isinstance(right, int) and right > 64:
            raise SecurityError("an exponent is too large")
        return super().call_binop(context, operator, left, right)


class _Guards(NodeTransformer):
    """Sends every loop through `counted` and every `~` through `joined`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "_joined", [], [], None, None, lineno=node.lineno)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(value: Any, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
