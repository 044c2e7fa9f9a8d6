#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# environment.sh DIR PYTHON PACKAGE...: a virtual environment with these packages, from PyPI, once. What cannot be
# installed is missing: tests that need it are skipped.
set -eu

dir=$1 python=$2
shift 2
mark=$dir/installed
[ "$(cat "$mark" 2>/dev/null)" != "$*" ] || exit 0

rm -rf "$dir"
if "$python" -m venv "$dir" && "$dir/bin/pip" --quiet --disable-pip-version-check install "$@"; then
        echo "$*" >"$mark"
else
        echo "environment.sh: $dir: not installed: tests that need it are skipped" >&2
fi
