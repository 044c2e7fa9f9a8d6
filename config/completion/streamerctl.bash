# SPDX-License-Identifier: Apache-2.0
#
# Completion of streamerctl and streamerd for bash: `PROGRAM complete` says what may stand next.
# shellcheck shell=bash

_streamerctl() {
        local line=${COMP_LINE:0:COMP_POINT} words current part prefix candidate
        # Without -r: a space that is escaped belongs to its word.
        # shellcheck disable=SC2162
        read -a words <<<"$line"
        [[ $line == *[[:space:]] && $line != *\\[[:space:]] ]] && words+=('')
        current=${words[-1]}
        # bash itself splits words at : and =, and takes only what comes after.
        part=${COMP_WORDS[COMP_CWORD]}
        [[ $part == [:=] ]] && part=
        prefix=${current%"${part//\\/}"}
        COMPREPLY=()
        while IFS=$'\t' read -r candidate _; do
                if [[ $candidate == :files ]]; then
                        compopt -o default 2>/dev/null
                        return
                fi
                COMPREPLY+=("$(printf %q "${candidate#"$prefix"}")")
        done < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
}
complete -F _streamerctl streamerctl streamerd
