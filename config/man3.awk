# SPDX-License-Identifier: Apache-2.0
#
# Makes libstreamer-client.3 of include/streamer/client.h:
#
#   awk -v version=0.1.0 -v example=README.md -f config/man3.awk include/streamer/client.h
#
# The first comment is the description. From the section of outcomes on, a line of dashes in a comment begins a
# section; a comment and the declarations that follow it, up to an empty line, are an entry: declarations first.
# The example is the first C program of the file of that name.

function escape(text) {
        gsub(/\\/, "\\e", text)
        gsub(/-/, "\\-", text)
        return text ~ /^[.']/ ? "\\&" text : text
}

# Of a comment: without its marks.
function plain(line) {
        sub(/^\/\*[ ]?/, "", line)
        sub(/[ ]*\*\/$/, "", line)
        sub(/^ \*[ ]?/, "", line)
        return line
}

function heading(name) {
        print ".SH " toupper(name)
}

# The overview: a word alone on its line begins a paragraph that has it as its title.
function describe(line) {
        if (line ~ /^[A-Za-z() ]+$/ && line !~ /^ /)
                print ".SS " escape(line)
        else if (line == "")
                print ".PP"
        else {
                sub(/^ +/, "", line)
                print escape(line)
        }
}

function entry(    i) {
        if (n_code > 0) {
                print ".PP\n.nf\n.ft B"
                for (i = 1; i <= n_code; i++)
                        print escape(code[i])
                print ".ft R\n.fi"
        }
        if (n_text > 0) {
                print (n_code > 0 ? ".RS 4" : ".PP")
                for (i = 1; i <= n_text; i++)
                        print escape(text[i])
                if (n_code > 0)
                        print ".RE"
        }
        n_code = n_text = 0
}

BEGIN {
        print ".\\\" SPDX-License-Identifier: Apache-2.0"
        print ".\\\" Made of include/streamer/client.h."
        print ".TH LIBSTREAMER\\-CLIENT 3 \"\" \"streamerd " version "\" \"Library Functions\""
        print ".SH NAME\nlibstreamer\\-client \\- attach to model weights that streamerd keeps in memory"
        print ".SH SYNOPSIS\n.nf\n.B #include <streamer/client.h>\n.PP"
        print "cc example.c $(pkg\\-config \\-\\-cflags \\-\\-libs streamer\\-client)\n.fi"
        heading("description")
}

# ---- the description
NR == 1 { overview = 1; next }
overview && /^ \*\/$/ { overview = 0; next }
overview { line = plain($0); if (line != "" || described) describe(line); described = 1; next }

# ---- the declarations
/^\/\* Outcomes\./ { declares = 1; heading("outcomes") }
/^#ifdef __cplusplus/ && declares { exit }
!declares { next }
/^\/\* ---- / {
        entry()
        line = $0
        gsub(/^\/\* -+ | -+ \*\/$/, "", line)
        heading(line)
        next
}
/^$/ { entry(); next }
/^\/\*/ { in_comment = 1 }
in_comment {
        text[++n_text] = plain($0)
        if (/\*\/$/)
                in_comment = 0
        next
}
{
        line = $0
        sub(/^STREAMER_API /, "", line)
        sub(/^        /, "    ", line)
        code[++n_code] = line
}

END {
        entry()
        heading("example")
        print ".nf"
        while ((getline line < example) > 0) {
                if (line == "```")
                        shown = 0
                if (shown)
                        print escape(line)
                if (line == "```c")
                        shown = 1
        }
        print ".fi\n.SH SEE ALSO\n.BR streamerctl (1),\n.BR streamerd (8)"
}
