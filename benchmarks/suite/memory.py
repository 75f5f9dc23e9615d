"""Peak memory of whole processes, and opening a packed file. asv counts what its own process and `setup` hold too:
`peakmem_reference` is that share.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from dllm_core.api import peak_rss_bytes
from dllm_core.checkpoint import open_folder
from dllm_core.checkpoint.convert import convert
from dllm_core.models import build_model
from dllm_core.testing.random_model import save_random_checkpoint

from .common import BACKENDS, FAST, QUANTISED, Timing, make_backend
from .inside import PROMPT, load_inside, require
from .model import forward, large

PACKED = {"layers": 8, "width": 1024, "heads": 8, "kv_heads": 8, "mlp": 2752, "vocab": 16384}


class Memory:
    params = (BACKENDS, ["f32", "qd8-f32-qc8w"])
    param_names = ("backend", "scheme")

    def setup(self, name: str, scheme: str) -> None:
        require(name, scheme)

    def peakmem_reference(self, name: str, scheme: str) -> None:
        make_backend(name, scheme)

    def peakmem_answer(self, name: str, scheme: str) -> None:
        load_inside(name, scheme).generate(PROMPT, strategy="fast")


class LargeMemory:
    """A pass of 128 rows through four layers of LLaDA-8B's shape, made tensor by tensor."""

    params = ([*QUANTISED, "bf16"],)
    param_names = ("scheme",)
    timeout = 120

    def setup(self, scheme: str) -> None:
        make_backend(FAST, scheme)

    def measure(self, scheme: str) -> int:
        """Bytes of the packed weights, after the pass."""
        model, source = large(scheme, None, 4)
        forward(model, 128, 0, 32)()
        return source.bytes

    def peakmem_forward(self, scheme: str) -> None:
        self.measure(scheme)

    def track_beyond_weights(self, scheme: str) -> float:
        """MB of the process that are not packed weights: interpreter, embedding, scratch, what packing needed."""
        before = peak_rss_bytes()
        held = self.measure(scheme)
        return max(peak_rss_bytes() - before - held, 0) / 1e6

    track_beyond_weights.unit = "MB"


class PackedFile(Timing):
    """A model of 115 million parameters, packed: written, opened, run once. The file is in the page cache."""

    params = (QUANTISED,)
    param_names = ("scheme",)

    def setup(self, scheme: str) -> None:
        self.backend = make_backend(FAST, scheme)
        self.folder = TemporaryDirectory()
        root = Path(self.folder.name)
        self.source = save_random_checkpoint(root / "source", **PACKED)
        self.target = root / "packed"
        self.convert(scheme)
        self.first_pass()

    def teardown(self, scheme: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def convert(self, scheme: str) -> None:
        convert(self.source, self.target, self.backend, scheme, force=True)

    def open(self):
        folder = open_folder(self.target)
        return build_model(folder.config, folder, self.backend, folder.scheme)

    def first_pass(self) -> None:
        forward(self.open(), 8, 0, 8)()

    def time_convert(self, scheme: str) -> None:
        self.convert(scheme)

    def time_open(self, scheme: str) -> None:
        self.open()

    def time_open_and_run(self, scheme: str) -> None:
        self.first_pass()
