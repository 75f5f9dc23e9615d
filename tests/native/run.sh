#!/bin/sh
# Builds the C tests with AddressSanitizer and UndefinedBehaviorSanitizer, warnings as errors, and runs them on
# every instruction set of this CPU: tests/native/run.sh [BUILD_DIRECTORY]. The row avxvnni is encoded for AVX-512.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$source/build/native}
cmake -S "$source" -B "$build" -DDLLM_TESTS=ON -DDLLM_SANITIZE=ON -DDLLM_STRICT=ON -DDLLM_PYTHON=OFF \
  -DDLLM_EVEX=ON >/dev/null
cmake --build "$build" --parallel 2
cd "$build"
export UBSAN_OPTIONS=print_stacktrace=1
exec ctest --output-on-failure
