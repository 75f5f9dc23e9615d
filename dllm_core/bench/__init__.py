"""Measurements behind `dllm bench`: each one beside the machine's own limits, taken in the same run."""
