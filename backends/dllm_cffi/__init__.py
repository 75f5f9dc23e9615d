"""Backend "cffi-simd"."""
