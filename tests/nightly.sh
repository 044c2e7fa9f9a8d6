#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# nightly.sh BUILD VARIABLE=VALUE...: runs each of the long stages, even if those before it have failed, with the output
# of each in BUILD/nightly/STAGE, and prints a line for each at the end. The variables are those of `make mutate`. The
# exit status is 1 if a stage has failed. STAGES="soak fuzz" runs these only.
set -u

build=$1
shift
logs=$build/nightly
mkdir -p "$logs"
status=0 table=

stage() { # NAME COMMAND...
        local name=$1 began=$SECONDS result=ok
        shift
        case " ${STAGES:-$name} " in *" $name "*) ;; *) return ;; esac
        echo "==> $name: $*"
        if ! "$@" >"$logs/$name" 2>&1 </dev/null; then
                result=FAILED
                status=1
                tail -n 40 "$logs/$name"
        fi
        table+=$(printf '%-9s %-7s %6d s  %s' "$name" "$result" $((SECONDS - began)) "$(tail -n 1 "$logs/$name")")$'\n'
}

make=("${MAKE:-make}" --no-print-directory)
stage soak "${make[@]}" soak
stage fuzz "${make[@]}" fuzz "FUZZ_SECONDS=$FUZZ_SECONDS"
stage vllm "${make[@]}" check-vllm
stage packages "${make[@]}" check-packages
stage image "${make[@]}" check-image
stage image-arm "${make[@]}" check-image PLATFORMS=linux/arm64
stage arm64 "${make[@]}" check-arm64
stage mutants "${make[@]}" mutate "$@"
stage coverage "${make[@]}" coverage

printf '\n%s' "$table"
exit $status
