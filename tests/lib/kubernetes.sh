#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kubernetes.sh DIR PYTHON: a virtual environment with helm's code and Kubernetes' schemas, from PyPI; 300 MB, once. What
# cannot be installed is missing: tests that need it are skipped.
set -eu

dir=$1 python=$2
mark=$dir/installed-1
[ ! -e "$mark" ] || exit 0

rm -rf "$dir"
if "$python" -m venv "$dir" && "$dir/bin/pip" --quiet --disable-pip-version-check install \
        helm-python-sdk==0.2.2 kubernetes-validate PyYAML; then
        touch "$mark"
else
        echo "kubernetes.sh: not installed: tests that need it are skipped" >&2
fi
