"""int8 linear layers through float32 BLAS, in blocks of weights that stay in the cache, on several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from dllm_numpy.backend import NumpyBackend

from dllm_core import quant

# The block of weights that is widened to float32 at a time: 512 KiB, half of a level-2 cache. Products of codes are at
# most 127 * 127, so their sum over up to 1040 inputs stays below 2**24, where float32 still counts every integer:
# BLAS is exact on them. Longer sums are put together in float64.
OUTPUTS, INPUTS = 128, 1024


class ExampleBackend(NumpyBackend):
    """`linear` is this backend's own; weights, their layout and all other operators are the reference's."""

    name = "example"
    default_scheme = "qd8-f32-qc8w"

    def __init__(self, threads=1):
        super().__init__(1)  # BLAS gets one thread, because the stripes below take the others
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)
        self.blocks = np.empty((threads, OUTPUTS * INPUTS), np.float32)  # scratch: one block a thread, made once

    @property
    def scratch_bytes(self):
        return self.blocks.nbytes

    def linear(self, x, w, out=None):
        """x [R, K] -> [R, N]. Every thread takes stripes of outputs, whole in K: no result depends on their number."""
        if not isinstance(w.weight, quant.QuantisedWeight):
            return super().linear(x, w, out)  # float32 and bfloat16
        n = len(w.weight.codes)
        y = np.empty((len(x), n), np.float32) if out is None else out
        codes, scale = quant.quantise_rows(x)
        codes = codes.astype(np.float32)

        def work(thread):
            for at in range(thread * OUTPUTS, n, self.threads * OUTPUTS):
                stripe = slice(at, min(at + OUTPUTS, n))
                total = np.zeros((len(x), stripe.stop - at), np.float32)
                for g, product in enumerate(self._products(codes, w.weight, stripe, self.blocks[thread])):
                    total += product.astype(np.float32, copy=False) * w.weight.scales[stripe, g]
                total *= scale[:, None]
                y[:, stripe] = total if w.bias is None else total + w.bias[stripe]

        list(self.pool.map(work, range(self.threads)))
        return y

    def accumulators(self, x, w):
        """The integers behind `linear`, by the same code: what the checks compare bit for bit."""
        codes, scale = quant.quantise_rows(x)
        n = len(w.weight.codes)
        stripes = [slice(at, min(at + OUTPUTS, n)) for at in range(0, n, OUTPUTS)]
        parts = [list(self._products(codes.astype(np.float32), w.weight, s, self.blocks[0])) for s in stripes]
        return codes, scale, np.concatenate(parts, axis=2).astype(np.int32)

    @staticmethod
    def _products(codes, weight, stripe, block):
        """For each group of inputs: codes [R, K] times the weight codes of a stripe, [R, outputs of the stripe]."""
        n = stripe.stop - stripe.start
        for start, stop in weight.scheme.groups(codes.shape[1]):
            product = np.zeros((len(codes), n), np.float32 if stop - start <= INPUTS else np.float64)
            for a in range(start, stop, INPUTS):
                b = min(a + INPUTS, stop)
                wide = block[: n * (b - a)].reshape(n, b - a)
                wide[...] = weight.codes[stripe, a:b]
                product += codes[:, a:b] @ wide.T
            yield product
