/* SPDX-License-Identifier: Apache-2.0 */
#include "client/streamerctl/term.h"

#include "client/streamerctl/output.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

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

/* The next character's bytes, and its columns: those of CJK have two, combining ones none. In UTF-8, whatever the
 * user's locale is: names are. */
static int next_character(const char *text, size_t *bytes)
{
        static locale_t utf8;
        mbstate_t state = {0};
        wchar_t c = 0;
        if (utf8 == NULL && (utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", NULL)) == NULL)
                utf8 = LC_GLOBAL_LOCALE; /* glibc before 2.35 on a system without that one: a byte is a column */
        locale_t before = uselocale(utf8);
        size_t n = mbrtowc(&c, text, strlen(text), &state);
        bool valid = n != (size_t)-1 && n != (size_t)-2;
        int columns = valid ? wcwidth(c) : 1;
        uselocale(before);
        *bytes = valid ? n : 1;
        return columns < 0 ? 1 : columns;
}

int text_width(const char *text)
{
        int columns = 0;
        for (size_t bytes; *text != '\0'; text += bytes)
                columns += next_character(text, &bytes);
        return columns;
}

size_t text_bytes(const char *text, int columns)
{
        const char *c = text;
        for (size_t bytes; *c != '\0' && (columns -= next_character(c, &bytes)) >= 0;)
                c += bytes;
        return (size_t)(c - text);
}

/* Where at most so many columns are left. */
static const char *text_tail(const char *text, int columns)
{
        int have = text_width(text);
        for (size_t bytes; have > columns; text += bytes)
                have -= next_character(text, &bytes);
        return text;
}

char *text_cut(const char *text, int to)
{
        int head = (to - 3 + 1) / 2, tail = to - 3 - head;
        char *out = malloc(strlen(text) + 4);
        if (!out)
                out_of_memory();
        if (text_width(text) <= to)
                strcpy(out, text);
        else if (to < 5)
                sprintf(out, "%.*s", (int)text_bytes(text, to), text);
        else
                sprintf(out, "%.*s...%s", (int)text_bytes(text, head), text, text_tail(text, tail));
        return out;
}
