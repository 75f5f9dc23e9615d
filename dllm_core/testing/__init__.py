"""For authors of backends and for our own checks: operator cases, conformance tests, random models.

`from dllm_core.testing.conformance import BackendConformance` needs pytest; the rest does not.
"""

from .cases import CASES, Case
from .check import CheckRow, run_checks
from .random_model import random_checkpoint, random_config, random_model, save_random_checkpoint

__all__ = [
    "CASES",
    "Case",
    "CheckRow",
    "random_checkpoint",
    "random_config",
    "random_model",
    "run_checks",
    "save_random_checkpoint",
]
