#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# under_shmem_enabled.sh VALUE COMMAND...: runs the command while the kernel's use of huge pages for shared memory is
# VALUE, and restores the previous one. Where it cannot be set, the command is not run.
set -u

setting=/sys/kernel/mm/transparent_hugepage/shmem_enabled
value=$1
shift
before=$(sed -n 's/.*\[\(.*\)\].*/\1/p' $setting 2>/dev/null)
if [ -z "$before" ] || ! echo "$value" >$setting 2>/dev/null; then
        echo "not run: $setting cannot be set to $value"
        exit 0
fi
trap 'echo "$before" >$setting' EXIT
trap 'exit 1' INT TERM
echo "with shmem_enabled $value:"
"$@"
