#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# calls.sh BUILD: no circles of calls between the source files of daemon/, within a folder and between folders. A call
# is a relocation of a branch in an object file of BUILD, so a callback that is passed as an address is none.
set -eu

# Calls that close a circle, to be removed: "caller callee", one a line. The list only shrinks: a call that closes no
# circle any more is an error.
known='
daemon/io/remote/range daemon/io/remote/http_engine
daemon/load/load daemon/load/coalesce
daemon/load/loads daemon/load/load
daemon/load/memory/from_cache daemon/load/load
daemon/load/memory/reserve daemon/load/load
daemon/load/memory/retry daemon/load/load
daemon/load/memory/round daemon/load/load
daemon/load/memory/round daemon/load/memory/reserve
daemon/load/part daemon/load/load
daemon/load/progress daemon/load/load
daemon/load/target daemon/load/load
daemon/load/target daemon/load/memory/round
daemon/resident/persist/leases daemon/resident/persist/persist
daemon/serve/desired/desired daemon/serve/desired/configured
'

find "$1/obj/daemon" -name '*.o' | sort | while read -r object; do
        source=${object#"$1/obj/"}
        # Not an object of a source that was removed since.
        [ -f "${source%.o}.c" ] && echo "$object"
done | xargs readelf -sW -rW | awk -v build="$1/obj/" -v known="$known" '
BEGIN {
        n_lines = split(known, lines, "\n")
        for (i = 1; i <= n_lines; i++)
                if (lines[i] != "")
                        excused[lines[i]] = 1
}
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
function find_circles(i) {
        split("", index_of)
        for (i = 1; i <= n_modules; i++)
                if (!(modules[i] in index_of))
                        visit(modules[i])
}
function add_edges(with_excused, pair, ends) {
        split("", edges)
        split("", functions)
        for (pair in calls) {
                split(pair, ends, SUBSEP)
                other = defined_in[ends[2]]
                if (other == "" || other == ends[1])
                        continue
                if (!with_excused && (ends[1] " " other) in excused)
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
        add_edges(1)
        find_circles()
        for (e in excused) {
                split(e, ends, " ")
                if (!((ends[1], ends[2]) in functions) || circle_of[ends[1]] != circle_of[ends[2]]) {
                        printf "%s: is not needed any more in the list of known circles\n", e
                        bad++
                }
        }
        add_edges(0)
        find_circles()
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
