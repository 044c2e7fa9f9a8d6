#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh BUILD FILE...: runs the tests of files (tests/unit/base/quota), JOBS at a time (five for two processors),
# and prints a summary. Files are independent: each runs in a process of its folder's program.
#
# A file that fails or prints no summary fails the run; so does a skipped test
# under CI=true, unless skips.txt allows it (README.md). A fuzz target replays its corpus.
# "cuda=FILE" runs it with a fake GPU instead of the host device. The last output of failed
# files is repeated at the end.
set -u

allowed=$(dirname "$0")/skips.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
limit=${TEST_TIMEOUT:-900}
passed=0 failed=0 skipped=0 failures=() took=

run() {
        local name=${1##*/}
        case $1 in
        cuda=*) STREAMERD_TEST_DEVICE=cuda run "${1#cuda=}" ;;
        tests/fuzz/*) timeout "$limit" "${build%/only}/$1" "tests/fuzz/corpus/${name#fuzz_}" ;;
        tests/unit/*) timeout "$limit" "$build/tests/unit" "$name.*" ;;
        *) timeout "$limit" "$build/${1%/*}" "$name.*" ;;
        esac
}

# Runs one file, by its index in the arguments; stores its output, exit status and seconds.
run_one() {
        local began=$SECONDS
        run "$2" >"$folder/$1.out" 2>&1 </dev/null
        echo "$? $((SECONDS - began))" >"$folder/$1.over"
        mv "$folder/$1.over" "$folder/$1.end" # renamed when complete
}

# Adds up Check's summary lines, or those of a corpus replay.
count() {
        local checks failures errors
        read -r checks failures errors < <(sed -nE \
                -e 's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+)$/\1 \2 \3/p' \
                -e 's/^[a-z0-9_]+: ([0-9]+) inputs$/\1 0 0/p' "$1" |
                awk '{ a += $1; b += $2; c += $3 } END { if (NR) print a, b, c }')
        [ -n "${checks:-}" ] || return 1
        passed=$((passed + checks - failures - errors))
        failed=$((failed + failures + errors))
}

fail() {
        failures+=("$1: $2")
        { echo "# $1" && grep -v '^Running suite' "$3" | tail -n 60; } >>"$folder/failed"
}

note_skips() {
        local line
        while IFS= read -r line; do
                skipped=$((skipped + 1))
                passed=$((passed - 1)) # a skipped test passes
                [ "${CI:-}" = true ] && ! grep -qxF -- "$line" "$allowed" && fail "$1" "skipped: $line" "$2"
        done < <(sed -n 's/^SKIP: //p' "$2")
}

# Reports the files that have ended since the last call.
gather() {
        local end i status seconds
        for end in "$folder"/*.end; do
                [ -e "$end" ] || return 0
                i=$(basename "$end" .end)
                read -r status seconds <"$end"
                rm "$end"
                ended[i]=1
                echo "# ${files[i]}"
                cat "$folder/$i.out"
                took+="$seconds s ${files[i]}"$'\n'
                note_skips "${files[i]}" "$folder/$i.out"
                if ! count "$folder/$i.out"; then
                        fail "${files[i]}" "exit status $status, no summary" "$folder/$i.out"
                        failed=$((failed + 1))
                elif [ "$status" -ne 0 ]; then
                        fail "${files[i]}" "exit status $status" "$folder/$i.out"
                fi
        done
}

build=$1
shift
[ $# -gt 0 ] || { echo "check.sh: no such test" >&2; exit 2; }

# Tests wait more than they compute, sanitized ones as well.
jobs=${JOBS:-$((2 * $(nproc) + 1))}
files=("$@") ended=() running=0
for i in "${!files[@]}"; do
        if [ "$running" -ge "$jobs" ]; then
                wait -n
                running=$((running - 1))
                gather
        fi
        run_one "$i" "${files[i]}" &
        running=$((running + 1))
done
wait
gather
for i in "${!files[@]}"; do
        [ -n "${ended[i]:-}" ] || fail "${files[i]}" "did not end" "$folder/$i.out"
done

echo "$SECONDS s in total; longest:"
printf '%s' "$took" | sort -rn | head -8
[ ${#failures[@]} -eq 0 ] || { cat "$folder/failed" && printf 'FAILED: %s\n' "${failures[@]}"; }
echo "$passed passed, $failed failed, $skipped skipped in $# files"
[ ${#failures[@]} -eq 0 ]
