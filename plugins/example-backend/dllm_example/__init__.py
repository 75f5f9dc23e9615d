"""Backend "example" for dllm. Nothing heavy is imported before somebody asks for the backend."""

from dllm_core import hookimpl


@hookimpl
def dllm_register_backends(register):
    def make(threads):
        from .backend import ExampleBackend

        return ExampleBackend(threads)

    register("example", make, priority=-10, summary="int8 linear through float32 BLAS, in blocks that fit the cache")
