"""What a user waits for before anything happens. Every sample is a fresh process."""

from __future__ import annotations


class Startup:
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
