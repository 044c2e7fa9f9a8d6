/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers in the notation of the tests: ' stands for ", ~ for a NUL byte, and ^ marks the byte at which a fault must
 * be detected.
 */
#pragma once

#include "daemon/model/safetensors.h"
#include "tests/lib/base.h"

struct text {
        char *s;
        size_t size;
        size_t mark;
};

static inline struct text text_of(const char *pattern)
{
        struct text t = {.s = must_alloc(strlen(pattern) + 1), .mark = SIZE_MAX};
        for (const char *c = pattern; *c; c++) {
                if (*c == '^')
                        t.mark = t.size;
                else
                        t.s[t.size++] = *c == '\'' ? '"' : *c == '~' ? '\0' : *c;
        }
        return t;
}

/* n times `item` between `before` and `after`; # in the item is its number. */
static inline struct text repeated(const char *before, size_t n, const char *item, const char *after)
{
        char *pattern = NULL;
        size_t size;
        FILE *f = open_memstream(&pattern, &size);
        fputs(before, f);
        for (size_t i = 0; i < n; i++)
                for (const char *c = item; *c; c++)
                        *c == '#' ? fprintf(f, "%zu", i) : putc_unlocked(*c, f);
        fputs(after, f);
        fclose(f);
        return text_of(pattern);
}

/* As a file of the header and `data` bytes. */
static inline int parse_text(struct st_header *header, struct text *text, uint64_t data, struct st_error *error)
{
        return st_parse(header, text->s, text->size, ST_PREFIX + text->size + data, error);
}
