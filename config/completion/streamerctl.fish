# SPDX-License-Identifier: Apache-2.0
#
# Completion of streamerctl and streamerd for fish: `PROGRAM complete` says what may stand next.

function __streamerctl_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($typed[1] complete -- $typed[2..-1] "$current" 2>/dev/null)
    if test "$lines[1]" = ":files"
        set -l flag (string match -r '^--[^=]*=' -- $current)
        set -l path (string sub -s (math 1 + (string length -- "$flag")) -- "$current")
        printf '%s\n' "$flag"(__fish_complete_path "$path")
    else
        printf '%s\n' $lines
    end
end

complete -c streamerctl -c streamerd -f -a '(__streamerctl_complete)'
