#!/bin/sh
# Fills a folder with every wheel that asv needs to build and run this suite, so that it works without an index:
#   benchmarks/wheelhouse.sh wheelhouse                        (with an index)
#   PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/wheelhouse asv run HEAD^!      (without one)
# For the Python that asv.conf.json names, on this platform.
set -eu
[ $# -eq 1 ] || { echo "usage: benchmarks/wheelhouse.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
# what runs is in the matrix, what builds in pyproject.toml; the rest is what asv puts into every environment
python3 - >"$folder/requirements.txt" <<'PYTHON'
import json
import tomllib

with open("asv.conf.json") as file:
    conf = json.load(file)
with open("pyproject.toml", "rb") as file:
    building = tomllib.load(file)["build-system"]["requires"]
running = [f"{name}=={pins[0]}" if pins[0] else name for name, pins in conf["matrix"]["req"].items()]
print(*running, *building, "cmake", "ninja", "asv_runner", "pympler", "build", "pip", "wheel", sep="\n")
PYTHON
version=$(python3 -c 'import json; print(json.load(open("asv.conf.json"))["pythons"][0])')
"python$version" -m pip download --quiet --only-binary :all: --dest "$folder" -r "$folder/requirements.txt"
echo "$folder: $(ls "$folder"/*.whl | wc -l) wheels"
