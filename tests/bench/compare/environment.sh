#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# environment.sh DIR PYTHON: a virtual environment with the loaders that streamerd is compared with, from PyPI; 1.5 GB,
# once. A loader that cannot be installed is named in DIR/absent, and left out of the comparison.
set -eu

dir=$1 python=$2
mark=$dir/installed-1
[ ! -e "$mark" ] || exit 0

rm -rf "$dir"
"$python" -m venv "$dir"
pip="$dir/bin/pip --quiet --disable-pip-version-check"
$pip install torch==2.13.0 numpy safetensors packaging botocore
: >"$dir/absent"
for package in runai-model-streamer runai-model-streamer-s3 fastsafetensors tensorizer; do
        $pip install torch==2.13.0 "$package" || echo "$package" >>"$dir/absent"
done
touch "$mark"
