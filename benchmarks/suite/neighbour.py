"""A neighbour: a process that wants a core all the time, at low priority."""

from __future__ import annotations

import os
import subprocess
import sys

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1 << 20): pass"


def busy_process(nice: int = 15) -> subprocess.Popen[bytes]:
    """Started and spinning; it ends when it is killed or its parent is gone."""
    return subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=lambda: os.nice(nice))
