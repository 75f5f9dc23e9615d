#!/bin/sh
# Measures the whole suite at HEAD, for benchmarks/results/MACHINE/, which is committed. About ten minutes on two cores,
# two of them to build; nothing else should run.
#   benchmarks/full.sh MACHINE        a name for this kind of machine, e.g. zen4-2cores
set -eu
[ $# -eq 1 ] || { echo "usage: benchmarks/full.sh MACHINE" >&2; exit 2; }
cd "$(dirname "$0")/.."
# only what matters for speed: no host name, no build of the kernel
python - "$1" <<'PYTHON'
import platform
import sys

from asv.machine import Machine, MachineCollection

facts = Machine.get_defaults()
facts |= {"machine": sys.argv[1], "os": platform.system(), "ram": f"{int(facts['ram']) / 1e9:.0f} GB"}
MachineCollection.save(sys.argv[1], facts)
PYTHON
asv run --machine "$1" 'HEAD^!' --bench '^(?!quick)'
python benchmarks/render.py
