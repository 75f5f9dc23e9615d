#!/bin/sh
# Measures the whole suite at HEAD, for benchmarks/results/MACHINE/, which is committed. About ten minutes on two cores, two of them to build;
# nothing else should run.
#   benchmarks/full.sh MACHINE        a name for this kind of machine, e.g. zen4-2cores
set -eu
[ $# -eq 1 ] || { echo "usage: benchmarks/full.sh MACHINE" >&2; exit 2; }
cd "$(dirname "$0")/.."
# only what matters for speed: no host name, no build of the kernel
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
memory=$(awk '/^MemTotal/ {printf "%d GB", $2 / 1000000}' /proc/meminfo)
asv machine --yes --machine "$1" --os "$(uname -s)" --arch "$(uname -m)" --cpu "$cpu" --num_cpu "$(nproc)" --ram "$memory"
asv run --machine "$1" 'HEAD^!' --bench '^(?!quick)'
python benchmarks/render.py
