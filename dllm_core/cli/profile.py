"""`dllm profile`: where the time of a step goes."""

from __future__ import annotations

from typing import Any

import click

from .bench import run_step, step_options
from .options import json_option


@click.command(short_help="Split a step by kind of work and by layer.")
@step_options
@json_option
def command(as_json: bool, **given: Any) -> None:
    """The same as `dllm bench step --profile`: one forward pass, split by kind of work and by layer."""
    run_step(True, as_json, **given)
