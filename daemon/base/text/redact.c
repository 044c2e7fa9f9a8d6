/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/redact.h"

#include "daemon/base/util.h"

#include <string.h>

/* The redacted text, in two pieces. */
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

void redact_source(char out[REDACTED_SOURCE], const char *source)
{
        struct pieces p = pieces_of(source);
        snprintf(out, REDACTED_SOURCE, "%.*s%.*s", p.scheme, source, p.rest, p.from);
}

char *redact_source_new(const char *source)
{
        struct pieces p = pieces_of(source);
        return format_new("%.*s%.*s", p.scheme, source, p.rest, p.from);
}
