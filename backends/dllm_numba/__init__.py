"""Backend "numba-int8"."""
