#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# label-models.sh FILE: writes the ready models of the node's daemon to FILE, a local feature of Node Feature Discovery,
# which labels the node feature.node.kubernetes.io/streamerd-model-NAME=true. The labels expire if this script ends.
# INTERVAL: seconds between two looks; ONCE: one look.
set -u
file=$1
interval=${INTERVAL:-15}

# A label's name has at most 63 characters of these, and ends with a letter or a digit.
label() {
        printf 'streamerd-model-%s' "$1" | tr -c 'A-Za-z0-9._-' _ | cut -c 1-63 | sed 's/[^A-Za-z0-9]*$//'
}

look() {
        date -u -d "@$(($(date +%s) + 4 * interval))" '+# +expiry-time=%Y-%m-%dT%H:%M:%SZ'
        streamerctl list --quiet | while IFS= read -r model; do
                streamerctl wait "$model" --timeout 0 >/dev/null 2>&1 && echo "$(label "$model")=true"
        done
}

while :; do
        # A file whose name begins with a dot is ignored until it is complete.
        look >"${file%/*}/.${file##*/}" && mv "${file%/*}/.${file##*/}" "$file"
        [ -z "${ONCE:-}" ] || exit 0
        sleep "$interval"
done
