#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh PROGRAM...: runs test programs one after the other and sums up. A program that fails, or
# says nothing of what it checked, fails the run; so does a skipped test under CI=true, unless
# skips.txt allows it (README.md). A fuzz program replays its corpus. "cuda=PROGRAM" runs it with
# stand-ins of a GPU for the host device. What a failed program said last is told again at the end,
# where those look who have only that.
set -u

allowed=$(dirname "$0")/skips.txt
output=$(mktemp) words=$(mktemp)
trap 'rm -f "$output" "$words"' EXIT
limit=${TEST_TIMEOUT:-900}
passed=0 failed=0 skipped=0 failures=() took=

run() {
        case $1 in
        cuda=*) STREAMERD_TEST_DEVICE=cuda timeout "$limit" "${1#cuda=}" ;;
        */fuzz_*) timeout "$limit" "$1" "tests/fuzz/corpus/${1##*/fuzz_}" ;;
        *) timeout "$limit" "$1" ;;
        esac
}

# One of Check's summary lines, or what a replay prints.
count() {
        local checks failures errors
        read -r checks failures errors < <(sed -nE \
                -e 's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+)$/\1 \2 \3/p' \
                -e 's/^[a-z0-9_]+: ([0-9]+) inputs$/\1 0 0/p' "$output" |
                awk '{ a += $1; b += $2; c += $3 } END { if (NR) print a, b, c }')
        [ -n "${checks:-}" ] || return 1
        passed=$((passed + checks - failures - errors))
        failed=$((failed + failures + errors))
}

note_skips() {
        local line
        while IFS= read -r line; do
                skipped=$((skipped + 1))
                passed=$((passed > 0 ? passed - 1 : 0))
                [ "${CI:-}" = true ] && ! grep -qxF -- "$line" "$allowed" && failures+=("$1: skipped: $line")
        done < <(sed -n 's/^SKIP: //p' "$output")
}

fail() {
        failures+=("$1")
        { echo "# ${1%%: *}" && grep -v '^Running suite' "$output" | tail -n 20; } >>"$words"
}

for program in "$@"; do
        echo "# $program"
        began=$SECONDS
        run "$program" 2>&1 | tee "$output"
        status=${PIPESTATUS[0]}
        took+="$((SECONDS - began)) s $program"$'\n'
        note_skips "$program"
        if ! count; then
                fail "$program: exit status $status, no summary"
                failed=$((failed + 1))
        elif [ "$status" -ne 0 ]; then
                fail "$program: exit status $status"
        fi
done
echo "$SECONDS s in all; longest:"
printf '%s' "$took" | sort -rn | head -8
[ ${#failures[@]} -eq 0 ] || { cat "$words" && printf 'FAILED: %s\n' "${failures[@]}"; }
echo "$passed passed, $failed failed, $skipped skipped in $# programs"
[ ${#failures[@]} -eq 0 ]
