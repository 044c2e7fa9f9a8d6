/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/shown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is shown of it, in two pieces. */
struct pieces {
        int scheme, rest;
        const char *from; /* of the rest */
};

static struct pieces pieces_of(const char *source)
{
        const char *authority = strstr(source, "://");
        if (source[0] == '/' || authority == NULL)
                return (struct pieces){.rest = (int)strlen(source), .from = source};
        authority += strlen("://");
        int scheme = (int)(authority - source);
        const char *at = memrchr(authority, '@', strcspn(authority, "/?#"));
        /* The user and password of http://user:password@host/; the revision of hf://org/name@rev stays. */
        if (at != NULL)
                authority = at + 1;
        return (struct pieces){.scheme = scheme, .rest = (int)strcspn(authority, "?#"), .from = authority};
}

void shown_source(char out[SHOWN_SOURCE], const char *source)
{
        struct pieces p = pieces_of(source);
        snprintf(out, SHOWN_SOURCE, "%.*s%.*s", p.scheme, source, p.rest, p.from);
}

char *shown_source_whole(const char *source)
{
        struct pieces p = pieces_of(source);
        char *out;
        return asprintf(&out, "%.*s%.*s", p.scheme, source, p.rest, p.from) < 0 ? NULL : out;
}
