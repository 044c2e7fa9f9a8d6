#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# label-models.sh FILE: writes the ready models of the node's daemon to FILE, a local feature of Node Feature Discovery,
# which labels the node feature.node.kubernetes.io/streamerd-model-NAME=true. The labels are removed when the script is
# terminated, and expire if it ends otherwise.
# INTERVAL: seconds between two looks; ONCE: one look.
#
# label-models.sh --label NAME: prints the label of a model.
set -u
interval=${INTERVAL:-15}
export LC_ALL=C

# The labels of models as `streamerctl list --json` prints them: one process for all. A quote within a text is escaped, so
# a member's name cannot be part of one.
# A label's name has at most 63 characters of these, and ends with a letter or a digit. Models whose names are no such text
# have a hash of them at the end, so that different models have different labels.
labels() {
        awk '
                function label(name,    i, hash, text) {
                        text = "streamerd-model-" name
                        if (name ~ /^[A-Za-z0-9._-]*[A-Za-z0-9]$/ && length(text) <= 63)
                                return text
                        for (i = 1; i <= length(name); i++)
                                hash = (hash * 65599 + code[substr(name, i, 1)]) % 4294967296
                        gsub(/[^A-Za-z0-9._-]/, "_", text)
                        return sprintf("%s-%04x%04x", substr(text, 1, 54), hash / 65536, hash % 65536)
                }
                BEGIN {
                        RS = "\"name\":"
                        for (i = 1; i < 256; i++)
                                code[sprintf("%c", i)] = i
                }
                NR > 1 && match($0, /^"([^"\\]|\\.)*"/) {
                        name = substr($0, 2, RLENGTH - 2)
                        sub(/"devices":.*/, "")
                        if (index($0, "\"state\":\"ready\"") && !seen[name]++)
                                print label(name) "=true"
                }'
}

if [ "$1" = --label ]; then
        name=$(printf %s "$2" | sed 's/[\\"]/\\&/g')
        printf '"name":"%s","state":"ready"' "$name" | labels | sed 's/=true$//'
        exit
fi
file=$1
hidden=${file%/*}/.${file##*/} # a file whose name begins with a dot is ignored until it is complete

# Without a daemon there are no models.
look() {
        date -u -d "@$(($(date +%s) + 4 * interval))" '+# +expiry-time=%Y-%m-%dT%H:%M:%SZ'
        streamerctl list --json | labels
}

# The first process of a container is ended by no signal that it does not handle.
trap 'kill ${!:-} 2>/dev/null; rm -f "$file" "$hidden"; exit 0' TERM INT
while :; do
        look >"$hidden" && mv "$hidden" "$file"
        [ -z "${ONCE:-}" ] || exit 0
        sleep "$interval" >/dev/null 2>&1 &
        wait $!
done
