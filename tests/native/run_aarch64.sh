#!/bin/sh
# The C tests for 64-bit ARM: cross-compiled with the sanitizers and warnings as errors, run under qemu on every
# row of the dispatch table; on older processors too, which must lose the rows that they cannot run.
# tests/native/run_aarch64.sh [BUILD_DIRECTORY]; needs Debian's packages gcc-aarch64-linux-gnu and qemu-user.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$source/build/aarch64}
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
  command -v $tool >/dev/null || {
    echo "$tool is missing: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2
    exit 1
  }
done
cmake -S "$source" -B "$build" -DCMAKE_TOOLCHAIN_FILE="$source/tests/native/aarch64.cmake" \
  -DDLLM_TESTS=ON -DDLLM_SANITIZE=ON -DDLLM_STRICT=ON -DDLLM_PYTHON=OFF >/dev/null
cmake --build "$build" --parallel 2
cd "$build"
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_leaks=0 # leaks are run.sh's: qemu has no ptrace

on() { # processor, tests, then the rows that it must run
  export QEMU_CPU="$1"
  ctest --output-on-failure -R "$2"
  shift 2
  rows=$(ctest --verbose -R '^peak$' | sed -n 's/.*peak: \([a-z0-9]*\)$/\1/p' | tr '\n' ' ')
  [ "$rows" = "$* " ] || { echo "$QEMU_CPU ran '$rows', not '$* '" >&2; exit 1; }
}
on max . neoni8mm neondot neon scalar
on neoverse-n1 'linear|peak' neondot neon scalar
on cortex-a72 'linear|peak' neon scalar
