#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh PROGRAM...: fuzzes each for FUZZ_SECONDS, one on each processor, from its corpus into a new folder, and prints
# seed, executions, covered edges and the longest stored input. Crashing inputs are stored beside the program.
set -u

seconds=${FUZZ_SECONDS:-60}
seed=${FUZZ_SEED:-$((RANDOM * 32768 + RANDOM + 1))}

fuzz() { # PROGRAM
        local program=$1 name=${1##*/fuzz_} found=$1-found log=$1.log result executions coverage longest
        mkdir -p "$found"
        "$program" -max_total_time="$seconds" -seed="$seed" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
                -artifact_prefix="$program-" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1
        result=$?
        executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
        coverage=$(grep -o 'cov: [0-9]* ft: [0-9]* corp: [0-9]*' "$log" | tail -1)
        longest=$(find "$found" "tests/fuzz/corpus/$name" -type f -printf '%s\n' | sort -n | tail -1)
        echo "$name: ${executions:-0} executions in $seconds s, ${coverage:-no coverage}," \
                "longest input ${longest:-0} bytes, seed $seed"
        if [ "$result" -ne 0 ]; then
                echo "FAILED: $program: exit status $result"
                tail -30 "$log"
        fi
        return $((result != 0))
}

export -f fuzz
export seconds seed
printf '%s\n' "$@" | xargs -P "$(nproc)" -I PROGRAM bash -c 'fuzz PROGRAM'
