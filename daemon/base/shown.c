/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/shown.h"

#include <stdio.h>
#include <string.h>

void shown_source(char out[SHOWN_SOURCE], const char *source)
{
        const char *authority = strstr(source, "://");
        if (source[0] == '/' || authority == NULL) {
                snprintf(out, SHOWN_SOURCE, "%s", source);
                return;
        }
        authority += strlen("://");
        size_t scheme = (size_t)(authority - source);
        const char *at = memrchr(authority, '@', strcspn(authority, "/?#"));
        /* The user and password of http://user:password@host/; the revision of hf://org/name@rev stays. */
        if (at != NULL)
                authority = at + 1;
        snprintf(out, SHOWN_SOURCE, "%.*s%.*s", (int)scheme, source, (int)strcspn(authority, "?#"), authority);
}
