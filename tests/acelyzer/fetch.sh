#!/bin/sh
# Fetches acelyzer 1.3.0, the original that `aiprof acelyzer` is compared with,
# from PyPI into a folder: fetch.sh FOLDER. Nothing outside it is touched.
#
# Everything is pinned by digest (requirements.txt). A folder that is complete is
# left alone. Run it with
#
#     PYTHONPATH=FOLDER PYTHONHASHSEED=0 python3 FOLDER/bin/acelyzer ...
set -eu

folder=$1
here=$(dirname "$0")
[ -e "$folder/complete" ] && exit 0
rm -rf "$folder"
python3 -m pip install --quiet --require-hashes --only-binary=:all: --no-compile \
	--target "$folder" --requirement "$here/requirements.txt"
touch "$folder/complete"
