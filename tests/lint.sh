#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# lint.sh: checks formatting, the licence line and shell syntax.
set -eu

sources=$(git ls-files '*.c' '*.h')
scripts=$(git grep -lE '^#!/bin/(ba)?sh' -- ':!*.md')
status=0

# shellcheck disable=SC2086 # lists of our own file names
clang-format-14 --dry-run -Werror $sources || status=1
for file in $sources $scripts; do
        head -3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || {
                echo "$file: no SPDX line"
                status=1
        }
done
for script in $scripts; do
        bash -n "$script" || status=1
done
if command -v shellcheck >/dev/null; then
        # shellcheck disable=SC2086
        shellcheck $scripts || status=1
fi
exit $status
