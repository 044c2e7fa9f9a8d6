#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# abi.sh LIBRARY [--update]: compares the interface of libstreamer-client, built with -g, with its description in
# client/libstreamer-client.abi: functions, structs, enumerations. --update writes the description. The functions of
# the Python package (client/python.h) are in no public header and not described.
set -eu

library=$1
description=client/libstreamer-client.abi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/suppressions" <<'X'
[suppress_function]
        symbol_name_regexp = ^streamer_python_
        drop = yes
X

abidw --headers-dir include --drop-private-types --suppressions "$folder/suppressions" \
        --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs --no-write-default-sizes \
        --type-id-style hash "$library" >"$folder/now.abi"
if [ "${2:-}" = --update ]; then
        cp "$folder/now.abi" $description
        exit
fi

# Of its exit status, bit 3 is an incompatible change, and bit 2 any other.
status=0
abidiff --harmless $description "$folder/now.abi" >"$folder/changes" || status=$?
[ $status -ne 0 ] || exit 0
cat "$folder/changes"
if [ $((status & 8)) -ne 0 ]; then
        echo "$library: programs that use it stop working: undo this, or change the SONAME"
elif [ $((status & 4)) -ne 0 ]; then
        echo "$library: if these changes only add to the interface: make abi-update"
fi
exit 1
