#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Who may include whom: a file includes only its own rank and lower ones, and what binds the code to
# one library or device stays in the few files that are named here. Tests may use what they like.
# Prints each breach.
set -eu

files() {
        git ls-files '*.c' '*.h' 2>/dev/null | grep . || find proto daemon client include tests -name '*.[ch]'
}

files | xargs grep -Hn '^[[:space:]]*#[[:space:]]*include' | awk '
BEGIN {
        # The model is pure and knows nothing of the rest, so that the reader may take its blocks.
        n = split("model base device io source resident load serve config", dirs, " ")
        for (i = 1; i <= n; i++)
                rank["daemon/" dirs[i]] = i
        rank["daemon"] = n + 1 # main.c
        rank["proto"] = 0
}
function dir(path) {
        return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : ""
}
function breach(why) {
        printf "%s: %s: %s\n", where, what, why
        bad++
}
function check_daemon() {
        if (!(from in rank))
                breach("a folder without a rank")
        else if (what == "streamer/client.h")
                return
        else if (!(to in rank))
                breach("outside daemon/ and proto/")
        else if (rank[to] > rank[from])
                breach("a higher rank")
        if (from == "daemon/model" && to != from && to != "proto")
                breach("daemon/model is pure: itself and proto/ only")
}
function check_own() {
        if (from ~ /^tests(\/|$)/)
                return
        if (from == "proto" && to != "proto" && what != "streamer/client.h")
                breach("proto/ includes itself and the public header only")
        else if (from == "client/streamerctl" && to != from && what != "streamer/client.h")
                breach("streamerctl uses the public header only")
        else if (from == "client" && to != from && to != "proto" && what != "streamer/client.h")
                breach("client/ includes proto/ and the public header only")
        else if (from ~ /^include/)
                breach("a public header stands alone")
        else if (from ~ /^daemon/)
                check_daemon()
}
function check_system() {
        if (from ~ /^tests(\/|$)/)
                return
        if (what ~ /^uv/ && file !~ /^daemon\/(serve\/|base\/wake\.|main\.c)/)
                breach("libuv belongs to daemon/serve, daemon/base/wake and daemon/main.c")
        if (what ~ /^curl\// && file !~ /^daemon\/io\/http/)
                breach("libcurl belongs to daemon/io/http*")
        if (what ~ /^cuda/ && file !~ /^daemon\/device\/cuda/)
                breach("CUDA belongs to daemon/device/cuda*")
        if (from == "daemon/model" && what ~ /^(pthread|fcntl|poll|threads|time|sys\/(stat|socket|time|uio))\.h$/)
                breach("daemon/model is pure: no I/O, no threads, no clock")
}
{
        split($0, part, ":")
        file = part[1]
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
        printf "layers: %d includes, %d breaches\n", seen, bad
        exit bad > 0
}'
