/* SPDX-License-Identifier: Apache-2.0 */
#include "client/streamerctl/term.h"

#include "client/streamerctl/output.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int term_width(int fd)
{
        struct winsize size;
        if (!isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) < 0)
                return 0;
        return size.ws_col;
}

/* Standard output is a terminal, and neither $NO_COLOR nor TERM=dumb disables colour. */
static bool term_colour(void)
{
        const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
        if (no_color && no_color[0])
                return false;
        return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

const char *term_state(const char *word)
{
        static const struct {
                const char *word, *colour;
        } states[] = {
                {"ready", "\033[32m"},  {"loading", "\033[33m"},  {"resolving", "\033[33m"},
                {"failed", "\033[31m"}, {"draining", "\033[35m"},
        };
        for (size_t i = 0; term_colour() && i < sizeof(states) / sizeof(states[0]); i++)
                if (strncmp(word, states[i].word, strlen(states[i].word)) == 0)
                        return states[i].colour;
        return "";
}

const char *term_title(void)
{
        return term_colour() ? "\033[1m" : "";
}

const char *term_plain(void)
{
        return term_colour() ? "\033[0m" : "";
}

int text_width(const char *text)
{
        int n = 0;
        for (; *text; text++)
                n += ((unsigned char)*text & 0xc0) != 0x80;
        return n;
}

size_t text_bytes(const char *text, int n)
{
        const char *c = text;
        for (; *c; c++)
                if (((unsigned char)*c & 0xc0) != 0x80 && n-- == 0)
                        break;
        return (size_t)(c - text);
}

char *text_cut(const char *text, int to)
{
        int have = text_width(text), head = (to - 3 + 1) / 2, tail = to - 3 - head;
        char *out = malloc(strlen(text) + 4);
        if (!out)
                out_of_memory();
        if (have <= to)
                strcpy(out, text);
        else if (to < 5)
                sprintf(out, "%.*s", (int)text_bytes(text, to), text);
        else
                sprintf(out, "%.*s...%s", (int)text_bytes(text, head), text, text + text_bytes(text, have - tail));
        return out;
}
