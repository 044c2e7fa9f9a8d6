# SPDX-License-Identifier: Apache-2.0
#
# zsh -f complete.zsh LINE...: prints each line as a zsh on a pseudo-terminal completes it at TAB. A key binding
# prints the line, so that no timeout is needed.

zmodload zsh/zpty || exit 1

zpty terminal zsh -f -i
# Prints the edited line between marks that it cannot contain.
zpty -w terminal "PS1= PS2= RPS1= fpath=(\$PWD/config/completion \$fpath); unsetopt beep; setopt nolistbeep
autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' menu no
show() { print -rn -- \$'\\1'\"\$BUFFER\"\$'\\2'; BUFFER= }; zle -N show; bindkey '^Xs' show
print -n \$'\\1'ready\$'\\2'"

# Reads the text between the next marks.
answer() {
        local said
        zpty -r terminal said $'*\1*\2' || exit 1
        said=${said##*$'\1'}
        REPLY=${said%$'\2'}
}

answer
for line in "$@"; do
        zpty -w -n terminal "$line"$'\t'$'\x18s'
        answer
        print -r -- "$REPLY"
done
zpty -d terminal
