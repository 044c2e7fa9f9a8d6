#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh PROGRAM...: runs test programs, JOBS at a time (three for two processors), and sums
# up. They share nothing but the machine, and none compares times.
#
# A program that fails, or says nothing of what it checked, fails the run; so does a skipped test
# under CI=true, unless skips.txt allows it (README.md). A fuzz program replays its corpus.
# "cuda=PROGRAM" runs it with stand-ins of a GPU for the host device. What a failed program said last
# is told again at the end, where those look who have only that.
set -u

allowed=$(dirname "$0")/skips.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
limit=${TEST_TIMEOUT:-900}
passed=0 failed=0 skipped=0 failures=() took=

run() {
        case $1 in
        cuda=*) STREAMERD_TEST_DEVICE=cuda timeout "$limit" "${1#cuda=}" ;;
        */fuzz_*) timeout "$limit" "$1" "tests/fuzz/corpus/${1##*/fuzz_}" ;;
        *) timeout "$limit" "$1" ;;
        esac
}

# One program, by its place among the arguments: what it said, its exit status, its seconds.
run_one() {
        local began=$SECONDS
        run "$2" >"$folder/$1.out" 2>&1 </dev/null
        echo "$? $((SECONDS - began))" >"$folder/$1.over"
        mv "$folder/$1.over" "$folder/$1.end" # whole, for whoever looks just then
}

# One of Check's summary lines, or what a replay prints.
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
        { echo "# $1" && grep -v '^Running suite' "$3" | tail -n 20; } >>"$folder/words"
}

note_skips() {
        local line
        while IFS= read -r line; do
                skipped=$((skipped + 1))
                passed=$((passed > 0 ? passed - 1 : 0))
                [ "${CI:-}" = true ] && ! grep -qxF -- "$line" "$allowed" && fail "$1" "skipped: $line" "$2"
        done < <(sed -n 's/^SKIP: //p' "$2")
}

# What has ended since it was asked last.
gather() {
        local end i status seconds
        for end in "$folder"/*.end; do
                [ -e "$end" ] || return 0
                i=$(basename "$end" .end)
                read -r status seconds <"$end"
                rm "$end"
                ended[i]=1
                echo "# ${programs[i]}"
                cat "$folder/$i.out"
                took+="$seconds s ${programs[i]}"$'\n'
                note_skips "${programs[i]}" "$folder/$i.out"
                if ! count "$folder/$i.out"; then
                        fail "${programs[i]}" "exit status $status, no summary" "$folder/$i.out"
                        failed=$((failed + 1))
                elif [ "$status" -ne 0 ]; then
                        fail "${programs[i]}" "exit status $status" "$folder/$i.out"
                fi
        done
}

[ $# -gt 0 ] || { echo "check.sh: no such test program" >&2; exit 2; }

# They wait more than they compute.
jobs=${JOBS:-$((($(nproc) * 3 + 1) / 2))}
programs=("$@") ended=() running=0
for i in "${!programs[@]}"; do
        if [ "$running" -ge "$jobs" ]; then
                wait -n
                running=$((running - 1))
                gather
        fi
        run_one "$i" "${programs[i]}" &
        running=$((running + 1))
done
wait
gather
for i in "${!programs[@]}"; do
        [ -n "${ended[i]:-}" ] || fail "${programs[i]}" "did not come to its end" "$folder/$i.out"
done

echo "$SECONDS s in all; longest:"
printf '%s' "$took" | sort -rn | head -8
[ ${#failures[@]} -eq 0 ] || { cat "$folder/words" && printf 'FAILED: %s\n' "${failures[@]}"; }
echo "$passed passed, $failed failed, $skipped skipped in $# programs"
[ ${#failures[@]} -eq 0 ]
