/* SPDX-License-Identifier: Apache-2.0
 *
 * The name of a model that was loaded without one: the shortest of its source's candidates (source.h) under which no
 * other source is resident, being loaded, or desired. A name that the source has already is preferred, so that the
 * same source is the same model. Where all candidates are in use the longest is numbered: "a/model#2".
 *
 * A name is free where only failed loads have it: the next load under a name replaces them.
 */
#include "daemon/load/load_private.h"

#include <limits.h>
#include <string.h>

enum name_use { NAME_FREE, NAME_OF_SOURCE, NAME_OF_OTHER };

static enum name_use name_use(const struct loads *loads, const char *name, const char *source)
{
        enum name_use use = NAME_FREE;
        list_each_item (const struct model_name, n, resident_bucket(loads->resident, name), by_name) {
                if (n->generation->state == GENERATION_FAILED || strcmp(n->text, name) != 0)
                        continue;
                if (!source_same(model_name_source(n), source))
                        return NAME_OF_OTHER;
                use = NAME_OF_SOURCE;
        }
        const char *desired = loads->desired_source != NULL ? loads->desired_source(loads, name) : NULL;
        if (desired != NULL)
                use = source_same(desired, source) ? NAME_OF_SOURCE : NAME_OF_OTHER;
        return use;
}

/* malloc'd; NULL: no memory. The longest candidate that fits a name with its number is numbered, without gaps, so that
 * the first number that is free ends the search. */
static char *find_name(const struct loads *loads, const char *source, const char *named_after)
{
        cleanup_free char *last = NULL;
        unsigned first_free = UINT_MAX;
        for (unsigned n = 0;; n++) {
                char *name = source_default_name(named_after, n);
                if (name == NULL)
                        return NULL;
                if (last != NULL && (strcmp(name, last) == 0 || strlen(name) > PROTO_NAME_MAX - 12)) {
                        free(name);
                        break;
                }
                enum name_use use = name_use(loads, name, source);
                if (use == NAME_OF_SOURCE)
                        return name;
                if (use == NAME_FREE && first_free == UINT_MAX)
                        first_free = n;
                free(last);
                last = name;
        }
        if (first_free != UINT_MAX)
                return source_default_name(named_after, first_free);
        for (unsigned number = 2;; number++) {
                char *name = format_new("%s#%u", last, number);
                if (name == NULL || name_use(loads, name, source) != NAME_OF_OTHER)
                        return name;
                free(name);
        }
}

int loads_default_name(const struct loads *loads, const char *source, const char *named_after, char **name,
                       struct error *error)
{
        cleanup_free char *canonical = NULL, *after = NULL;
        int r = source_canonical(source, &canonical, error)
                        ?: source_canonical(named_after != NULL ? named_after : source, &after, error);
        if (r < 0)
                return r;
        *name = find_name(loads, canonical, after);
        return *name != NULL ? 0 : error_no_memory(error);
}
