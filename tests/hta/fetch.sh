#!/bin/sh
# Fetches HolisticTraceAnalysis 0.5.0, whose analyses those of aiprof are compared with,
# from PyPI into a folder: fetch.sh FOLDER. Nothing outside it is touched.
#
# Everything is pinned by digest (requirements.txt). A folder that is complete is left
# alone. `oracle.py` runs it.
set -eu

folder=$1
here=$(dirname "$0")
[ -e "$folder/complete" ] && exit 0
rm -rf "$folder"
python3 -m pip install --quiet --require-hashes --no-deps --only-binary=:all: --no-compile \
	--target "$folder" --requirement "$here/requirements.txt"
touch "$folder/complete"
