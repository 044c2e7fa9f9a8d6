#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# calls.sh BUILD: no circles of calls between the source files of daemon/, within a folder and between folders. A call
# is a relocation of a branch in an object file of BUILD, so a callback that is passed as an address is none.
set -eu

find "$1/obj/daemon" -name '*.o' | sort | while read -r object; do
        source=${object#"$1/obj/"}
        # Not an object of a source that was removed since.
        [ -f "${source%.o}.c" ] && echo "$object"
done | xargs readelf -sW -rW | awk -v build="$1/obj/" '
/^File: / {
        module = substr($2, length(build) + 1)
        sub(/\.o$/, "", module)
        modules[++n_modules] = module
        next
}
$4 == "FUNC" && $5 ~ /^(GLOBAL|WEAK)$/ && $7 != "UND" {
        defined_in[$8] = module
        next
}
$3 ~ /^R_(X86_64_PLT32|AARCH64_CALL26|AARCH64_JUMP26)$/ {
        calls[module, $5] = 1
}
# Tarjan: numbers the circle of each module.
function visit(m, list, n, i, circle) {
        index_of[m] = low[m] = ++visited
        stack[++depth] = m
        on_stack[m] = 1
        n = split(edges[m], list, " ")
        for (i = 1; i <= n; i++) {
                if (!(list[i] in index_of)) {
                        visit(list[i])
                        if (low[list[i]] < low[m])
                                low[m] = low[list[i]]
                } else if (on_stack[list[i]] && index_of[list[i]] < low[m])
                        low[m] = index_of[list[i]]
        }
        if (low[m] != index_of[m])
                return
        n_circles++
        do {
                circle = stack[depth--]
                on_stack[circle] = 0
                circle_of[circle] = n_circles
        } while (circle != m)
}
function add_edges(pair, ends, other) {
        for (pair in calls) {
                split(pair, ends, SUBSEP)
                other = defined_in[ends[2]]
                if (other == "" || other == ends[1])
                        continue
                if (!((ends[1], other) in functions))
                        edges[ends[1]] = edges[ends[1]] " " other
                functions[ends[1], other] = functions[ends[1], other] " " ends[2]
        }
}
END {
        if (n_modules == 0) {
                print "calls: no object files"
                exit 1
        }
        add_edges()
        for (i = 1; i <= n_modules; i++)
                if (!(modules[i] in index_of))
                        visit(modules[i])
        for (pair in functions) {
                split(pair, ends, SUBSEP)
                if (circle_of[ends[1]] != circle_of[ends[2]])
                        continue
                printf "%s.c calls %s.c in a circle:%s\n", ends[1], ends[2], functions[pair]
                bad++
        }
        printf "calls: %d files, %d breaches\n", n_modules, bad
        exit bad > 0
}'
