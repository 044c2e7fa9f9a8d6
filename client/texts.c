/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts for a person: what may be printed, and what was meant.
 */
#include "client/args.h"
#include "proto/distance.h"
#include "proto/printable.h"

#include <stdlib.h>
#include <string.h>

char *streamer_printable(const char *text)
{
        size_t len = text ? strlen(text) : 0;
        char *out = malloc(4 * len + PRINTABLE_MAX), *end = out; /* a byte takes 4 at the most */
        if (!out)
                return NULL;
        *end = 0;
        for (size_t at = 0; at < len; end += strlen(end))
                at += printable_next(end, text + at, len - at);
        return out;
}

const char *streamer_nearest(const char *name, const char *const *names, size_t n)
{
        if (args_pointer(NULL, "nearest", "name", name) != 0 ||
            (n > 0 && args_pointer(NULL, "nearest", "names", names)))
                return NULL;
        return name_nearest(name, names, n);
}
