# SPDX-License-Identifier: Apache-2.0
#
# Completion of streamerctl for fish: `streamerctl complete` says what may stand next.

function __streamerctl_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($typed[1] complete -- $typed[2..-1] "$current" 2>/dev/null)
    if test "$lines[1]" = ":files"
        __fish_complete_path "$current"
    else
        printf '%s\n' $lines
    end
end

complete -c streamerctl -f -a '(__streamerctl_complete)'
