#!/bin/sh
# Measures everything that docs/performance.md shows, into docs/results/, and renders the page. Nothing else should run.
# Takes about ten minutes, 10 GB of memory and 9 GB of disk.
#   benchmarks/measure.sh [--only PATTERN] [THREADS]
# PATTERN is a shell pattern of result names: 'bench-kernel-*', 'bench-step-*', bench-packed. THREADS: all cores if not
# given. A measurement that fails is named at the end, the others are made; the exit code is then 1.
set -u
cd "$(dirname "$0")/.." || exit 2
only='*'
if [ "${1:-}" = --only ]; then
    [ $# -ge 2 ] || { echo "usage: benchmarks/measure.sh [--only PATTERN] [THREADS]" >&2; exit 2; }
    only=$2
    shift 2
fi
all=${1:-$(nproc)}
out=docs/results
model=random:llada-8b
failed=

# writes NAME.json once the command, with --json, is complete
record() {
    name=$1
    shift
    # shellcheck disable=SC2254  # a pattern is wanted
    case $name in $only) ;; *) return ;; esac
    echo "$name: $*" >&2
    if "$@" --json >"$out/.$name.part"; then
        mv "$out/.$name.part" "$out/$name.json"
    else
        rm -f "$out/.$name.part"
        failed="$failed $name"
    fi
}

measure() {
    name=$1
    shift
    record "$name" dllm bench "$@"
}

measure bench-peak peak
for threads in 1 "$all"; do
    for scheme in qd8-f32-qc8w qd8-f32-qb8w qd8-f32-qb4w; do
        measure "bench-kernel-$scheme-$threads" kernel --rows 1,8,32,128,512 --scheme $scheme --threads "$threads" --repeats 9
    done
    measure "bench-kernel-bf16-$threads" kernel --rows 32,128,512 --scheme bf16 --threads "$threads"
    measure "bench-kernel-numba-$threads" kernel --backend numba-int8 --shape 4096x4096 --rows 32,128 \
        --scheme qd8-f32-qc8w --threads "$threads" --repeats 9
    DLLM_ISA=avx2
    export DLLM_ISA
    measure "bench-kernel-avx2-$threads" kernel --shape 4096x4096 --rows 32,128 --scheme qd8-f32-qc8w --threads "$threads"
    unset DLLM_ISA
    measure "bench-step-128-$threads" step --model $model --rows 128 --head-rows 32 --scheme qd8-f32-qc8w --threads "$threads"
done
measure "bench-step-512-$all" step --model $model --rows 512 --head-rows 32 --scheme qd8-f32-qc8w --threads "$all"
measure "bench-step-block-$all" step --model $model --rows 32 --cached 512 --scheme qd8-f32-qc8w --threads "$all"
measure "bench-step-int4-$all" step --model $model --rows 128 --head-rows 32 --scheme qd8-f32-qb4w --threads "$all"
measure "bench-decode-$all" decode --model tiny --strategy reference,fast --threads "$all"
record bench-neighbour python benchmarks/neighbour.py --threads "$all"
record bench-process python benchmarks/processes.py
record bench-packed python benchmarks/packed_open.py
python benchmarks/render.py || failed="$failed render.py"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
