"""What a user waits for before anything happens. `timeraw_` leaves out the start of the interpreter; the cold ones are
whole processes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class Startup:
    rounds = 1
    repeat = 7

    def timeraw_import(self) -> str:
        return "import dllm_core"

    def timeraw_help(self) -> str:
        return """
        from dllm_core.cli.main import main
        import contextlib, io, sys
        sys.argv = ["dllm", "--help"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main()
        """

    def timeraw_plugins(self) -> str:
        return "from dllm_core.plugins import load_registry; load_registry()"

    def timeraw_backend_numpy(self) -> str:
        return "from dllm_core.plugins import load_registry; load_registry().backend('numpy', 1)"

    def timeraw_backend_cffi(self) -> str:
        return "from dllm_core.plugins import load_registry; load_registry().backend('cffi-simd', 1)"

    def timeraw_backend_numba(self) -> str:
        return "from dllm_core.plugins import load_registry; load_registry().backend('numba-int8', 1)"


class Process:
    """From the shell's call to its end."""

    rounds = 1
    repeat = 9
    number = 1
    params = (["python -c pass", "import dllm_core", "dllm --version", "dllm run"],)
    param_names = ("command",)

    def setup(self, command: str) -> None:
        dllm = str(Path(sys.executable).with_name("dllm"))
        self.command = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import dllm_core": [sys.executable, "-c", "import dllm_core"],
            "dllm --version": [dllm, "--version"],
            "dllm run": [dllm, "run", "What is 217 + 384?"],
        }[command]

    def time_process(self, command: str) -> None:
        subprocess.run(self.command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
