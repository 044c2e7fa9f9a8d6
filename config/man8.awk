# SPDX-License-Identifier: Apache-2.0
#
# Generates streamerd.8: the text of config/streamerd.8, with the flags and variables of --help in place of its lines
# @FLAGS@ and @ENVIRONMENT@:
#
#   build/streamerd --help | awk -v version=0.1.0 -f config/man8.awk - config/streamerd.8

function escape(text) {
        gsub(/\\/, "\\e", text)
        gsub(/-/, "\\-", text)
        return text
}

function print_rows(section,   i) {
        for (i = 1; i <= n[section]; i++)
                print ".TP\n\\fB" name[section, i] "\\fR\n" text[section, i]
}

FILENAME == "-" {
        if (/^Environment:/)
                section = "ENVIRONMENT"
        else if (/^  --/)
                section = "FLAGS"
        else if (!/^  /)
                section = ""
        if (section == "" || /^[^ ]/)
                next
        line = $0
        sub(/^ +/, "", line)
        if (/^  [-A-Z]/) {
                row = ++n[section]
                key = line
                sub(/  .*/, "", key)
                line = substr(line, length(key) + 1)
                sub(/^ +/, "", line)
                name[section, row] = escape(key)
                sub(/ [A-Z]+$/, "\\fR \\fI&", name[section, row])
                sub(/\\fI /, "\\fI", name[section, row])
        }
        if (line != "")
                text[section, row] = text[section, row] (text[section, row] == "" ? "" : "\n") escape(line)
        next
}

/^@[A-Z]+@$/ {
        print_rows(substr($0, 2, length($0) - 2))
        next
}

{
        sub(/@VERSION@/, version)
        print
}
