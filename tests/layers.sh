#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The dependency rules of the code, checked against every #include. Prints each violation.
#
# - A file includes only its own rank and lower ones.
# - A module is a source file and its header; modules do not include each other in a cycle. A header without a source
#   belongs to the module whose header it includes and whose source includes it: it is private to that one's parts.
# - No file name occurs twice in daemon/.
# - Code that needs libuv, libcurl or CUDA is in the folders named below.
#
# Tests may include every header.
set -eu

# Lowest first; entries on one line have the same rank. The longest entry that a module's path begins with is its own.
ranks='
proto
daemon/base/error daemon/base/util
daemon/base/json
daemon/model
daemon/base
daemon/base/text daemon/base/metric
daemon/base/thread/threads daemon/base/thread/wake
daemon/base/log
daemon/base/thread
daemon/base/sys
daemon/base/fallback
daemon/device
daemon/device/host daemon/device/cuda
daemon/io/object daemon/io/staging
daemon/io/reader
daemon/io/file daemon/io/http
daemon/io/readback daemon/io/remote
daemon/source/sidecar daemon/source/source
daemon/source/model_dir daemon/source/probe daemon/source/roots
daemon/source/sums
daemon/source/local daemon/source/web daemon/source/s3/s3_reply daemon/source/s3/xml
daemon/source/aws
daemon/source/hf daemon/source/s3
daemon/source
daemon/resident
daemon/resident/unload
daemon/resident/persist
daemon/resident/hostcache
daemon/resident/admission
daemon/load/content
daemon/load
daemon/load/memory
daemon/publish
daemon/serve/access/role daemon/serve/conn daemon/serve/events/changes
daemon/serve/limits
daemon/serve/desired
daemon/serve/server_state
daemon/serve/access daemon/serve/reply
daemon/serve/session
daemon/serve/deferred
daemon/serve/verb_task
daemon/serve/events daemon/serve/file_transfer
daemon/serve/monitor
daemon/serve/server
daemon/serve/verbs
daemon/config/settings
daemon/config
daemon/config/build
daemon/main
'

# Known violations, to be removed: "module the-module-that-it-includes", one a line.
known='
'

files() {
        git ls-files '*.c' '*.h' 2>/dev/null | grep . || find proto daemon client include tests -name '*.[ch]'
}

files | grep '^daemon/' | sed 's|.*/||' | sort | uniq -d | sed 's/$/: two files in daemon\/ have this name/' | {
        ! grep .
}

files | xargs grep -Hn '^[[:space:]]*#[[:space:]]*include' | awk -v ranks="$ranks" -v known="$known" '
BEGIN {
        n_lines = split(ranks, lines, "\n")
        for (i = 1; i <= n_lines; i++) {
                n = split(lines[i], entries, " ")
                for (j = 1; j <= n; j++)
                        rank[entries[j]] = i
        }
        n_lines = split(known, lines, "\n")
        for (i = 1; i <= n_lines; i++)
                if (lines[i] != "")
                        excused[lines[i]] = 1
}
function dir(path) {
        return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : ""
}
function module(path) {
        sub(/\.[ch]$/, "", path)
        return path
}
function rank_of(path) {
        while (!(path in rank) && path != "")
                path = dir(path)
        return path in rank ? rank[path] : 0
}
function is_pure(folder) {
        return folder == "daemon/model" || folder == "daemon/base/json"
}
function breach(why) {
        printf "%s: %s: %s\n", where, what, why
        bad++
}
function check_daemon(own, other) {
        own = module(file)
        other = module(what)
        if (!rank_of(own))
                breach("a folder without a rank")
        if (what == "streamer/client.h")
                return
        if (!rank_of(other)) {
                breach("outside daemon/ and proto/")
                return
        }
        if (own == other)
                return
        if (own " " other in excused) {
                met[own " " other] = 1
                return
        }
        if (rank_of(other) > rank_of(own))
                breach("a higher rank")
        if (is_pure(from) && !is_pure(to) && to != "proto" && other !~ /^daemon\/base\/(error|util)$/)
                breach("pure code includes pure code, errors and proto/ only")
        includes[own, other] = 1
}
# The module that a private header belongs to.
function owner(m, pair, ends) {
        if (m in has_source)
                return m
        for (pair in includes) {
                split(pair, ends, SUBSEP)
                if (ends[1] == m && (ends[2], m) in includes && ends[2] in has_source)
                        return ends[2]
        }
        return m
}
function add_edges(pair, ends, own, other) {
        for (pair in includes) {
                split(pair, ends, SUBSEP)
                own = owner(ends[1])
                other = owner(ends[2])
                if (own != other)
                        edges[own] = edges[own] " " other
        }
}
# Tarjan: prints each cycle of modules once.
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
        for (n = 0; stack[depth + 1] != m; n++) {
                circle = stack[depth] " " circle
                on_stack[stack[depth--]] = 0
        }
        if (n > 1) {
                printf "these include each other in a circle: %s\n", circle
                bad++
        }
}
function check_own() {
        if (from ~ /^tests(\/|$)/)
                return
        if (from ~ /^proto/ && to !~ /^proto/ && what != "streamer/client.h")
                breach("proto/ includes itself and the public header only")
        else if (from == "client/streamerctl" && to != from && what != "streamer/client.h")
                breach("streamerctl uses the public header only")
        else if (from == "client" && to != from && to !~ /^proto/ && what != "streamer/client.h")
                breach("client/ includes proto/ and the public header only")
        else if (from == "client/publish" && to != from && to != "client" && to !~ /^proto/ && what != "streamer/client.h")
                breach("client/publish includes client/, proto/ and the public header only")
        else if (from ~ /^include/)
                breach("a public header stands alone")
        else if (from ~ /^daemon/)
                check_daemon()
}
function check_system() {
        if (from ~ /^tests(\/|$)/)
                return
        if (what ~ /^uv/ && file !~ /^daemon\/(serve\/|base\/thread\/wake\.|main\.c)/)
                breach("libuv belongs to daemon/serve, daemon/base/thread/wake and daemon/main.c")
        if (what ~ /^curl\// && file !~ /^daemon\/io\/http\//)
                breach("libcurl belongs to daemon/io/http")
        if (what ~ /^cuda/ && file !~ /^daemon\/device\/cuda\//)
                breach("CUDA belongs to daemon/device/cuda")
        if (is_pure(from) && what ~ /^(pthread|fcntl|poll|threads|time|sys\/(stat|socket|time|uio))\.h$/)
                breach("pure code has no I/O, no threads, no clock")
}
{
        split($0, part, ":")
        file = part[1]
        if (file ~ /\.c$/)
                has_source[module(file)] = 1
        where = part[1] ":" part[2]
        from = dir(file)
        if (match($0, /include[ \t]*"[^"]*"/)) {
                what = substr($0, RSTART, RLENGTH)
                gsub(/^include[ \t]*"|"$/, "", what)
                to = dir(what)
                check_own()
        } else if (match($0, /include[ \t]*<[^>]*>/)) {
                what = substr($0, RSTART, RLENGTH)
                gsub(/^include[ \t]*<|>$/, "", what)
                check_system()
        }
        seen++
}
END {
        if (seen == 0) {
                print "layers: no files found"
                exit 1
        }
        add_edges()
        for (m in edges)
                if (!(m in index_of))
                        visit(m)
        for (e in excused)
                if (!(e in met)) {
                        printf "%s: is not needed any more in the list of known breaches\n", e
                        bad++
                }
        printf "layers: %d includes, %d breaches\n", seen, bad
        exit bad > 0
}'
