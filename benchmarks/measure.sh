#!/bin/sh
# Measures everything that docs/performance.md shows, into docs/results/, and renders the page. Takes about ten
# minutes and 8 GB of memory; nothing else should run: benchmarks/measure.sh [THREADS]
set -eu
cd "$(dirname "$0")/.."
all=${1:-$(nproc)}
out=docs/results
model=random:llada-8b

# writes NAME.json once the measurement is complete
measure() {
    name=$1
    shift
    echo "$name: dllm bench $*" >&2
    dllm bench "$@" --json >"$out/.$name.part"
    mv "$out/.$name.part" "$out/$name.json"
}

measure bench-peak peak
for threads in 1 "$all"; do
    for scheme in qd8-f32-qc8w qd8-f32-qb8w; do
        measure "bench-kernel-$scheme-$threads" kernel --rows 1,8,32,128,512 --scheme $scheme --threads "$threads" --repeats 9
    done
    measure "bench-kernel-numba-$threads" kernel --backend numba-int8 --shape 4096x4096 --rows 32,128 \
        --scheme qd8-f32-qc8w --threads "$threads"
    (
        export DLLM_ISA=avx2
        measure "bench-kernel-avx2-$threads" kernel --shape 4096x4096 --rows 32,128 --scheme qd8-f32-qc8w --threads "$threads"
    )
    measure "bench-step-128-$threads" step --model $model --rows 128 --head-rows 32 --scheme qd8-f32-qc8w --threads "$threads"
done
measure "bench-step-512-$all" step --model $model --rows 512 --head-rows 32 --scheme qd8-f32-qc8w --threads "$all"
measure "bench-step-block-$all" step --model $model --rows 32 --cached 512 --scheme qd8-f32-qc8w --threads "$all"
measure "bench-decode-$all" decode --model tiny --strategy reference,fast --threads "$all"
python benchmarks/render.py
