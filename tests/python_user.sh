#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# python_user.sh WHEEL: runs the two commands of docs/python.md that lead from a wheel to tensors, in a fresh virtual
# environment. As root it becomes the user nobody first.
set -eu
if [ "$(id -u)" = 0 ]; then
        folder=$(mktemp -d)
        trap 'rm -rf "$folder"' EXIT
        cp "$1" "$0" docs/python.md client/python/tests/checkpoints.py "$folder"
        chown -R nobody "$folder"
        user=(setpriv --reuid nobody --regid nogroup --clear-groups env -i "PATH=$PATH" "HOME=$folder" USER=nobody)
        mapfile -t pip < <(env | grep -E '^(PIP_|https?_proxy=)')
        "${user[@]}" "${pip[@]}" "FOLDER=$folder" bash "$folder/${0##*/}" "$folder/${1##*/}"
        exit
fi

folder=${FOLDER:-$(mktemp -d)}
page=$(realpath "$folder/python.md" 2>/dev/null || realpath docs/python.md)
here=$(realpath client/python/tests 2>/dev/null || echo "$folder")
wheel=$(realpath "$1")
mkdir "$folder/work" "$folder/runtime"
chmod 700 "$folder/runtime"
cd "$folder/work"
mkdir -p build/wheel
cp "$wheel" build/wheel
PYTHONPATH=$here "${PYTHON:-python3}" -c '
from pathlib import Path
from checkpoints import small, write
write(Path("model.safetensors"), [*small(), ("norm.weight", "BF16", [8])])'
"${PYTHON:-python3}" -m venv env
. env/bin/activate
export XDG_RUNTIME_DIR=$folder/runtime STREAMERD_EXIT_IDLE=1s
unset STREAMERD_SOCKET STREAMERD_AUTOSTART

commands=$(sed -n 's/^    \$ \(pip install build.*\|python3\? -c .*\)$/\1/p' "$page" | head -2)
[ "$(echo "$commands" | wc -l)" = 2 ]
echo "$commands"
output=$(eval "$commands" 2>errors) || { cat errors; exit 1; }
[ "$(echo "$output" | grep -c '^layer\.[0-9]\.weight (4, 8)$\|^norm\.weight (8,)$')" = 5 ] ||
        { echo "$output"; exit 1; }
streamerctl --version
