/* SPDX-License-Identifier: Apache-2.0
 *
 * The name of a model that was loaded without one: the shortest of its source's candidates (source.h) under which no
 * other source is resident, being loaded, or desired. A name that the source has already is preferred, so that the
 * same source is the same model. Where all candidates are in use the longest is numbered: "a/model#2".
 *
 * A name is free where only failed loads have it: the next load under a name replaces them.
 */
#include "daemon/load/load_private.h"

#include <string.h>

enum name_use { NAME_FREE, NAME_OF_SOURCE, NAME_OF_OTHER };

static enum name_use name_use(const struct loads *loads, const char *name, const char *source)
{
        enum name_use use = NAME_FREE;
        list_each_item (const struct model_name, n, resident_bucket(loads->resident, name), by_name) {
                if (n->generation->state == GENERATION_FAILED || strcmp(n->text, name) != 0)
                        continue;
                if (strcmp(model_name_source(n), source) != 0)
                        return NAME_OF_OTHER;
                use = NAME_OF_SOURCE;
        }
        const char *desired = loads->desired_source != NULL ? loads->desired_source(loads, name) : NULL;
        if (desired != NULL)
                use = strcmp(desired, source) == 0 ? NAME_OF_SOURCE : NAME_OF_OTHER;
        return use;
}

/* The n-th candidate; the same as the one before it where there are no more. NULL: no memory. */
static char *candidate(const char *named_after, unsigned n, unsigned n_paths)
{
        if (n < n_paths)
                return source_default_name(named_after, n);
        cleanup_free char *longest = source_default_name(named_after, n_paths - 1);
        return longest != NULL ? format_new("%s#%u", longest, n - n_paths + 2) : NULL;
}

/* How many different candidates the source has, of which each but the first fits a name with its number. 0: no memory.
 */
static unsigned count_paths(const char *named_after)
{
        cleanup_free char *previous = source_default_name(named_after, 0);
        for (unsigned n = 1; previous != NULL; n++) {
                char *next = source_default_name(named_after, n);
                if (next != NULL && (strcmp(next, previous) == 0 || strlen(next) > PROTO_NAME_MAX - 12)) {
                        free(next);
                        return n;
                }
                free(previous);
                previous = next;
        }
        return 0;
}

static int find_name(const struct loads *loads, const char *source, const char *named_after, char **name,
                     struct error *error)
{
        char *unused = NULL;
        unsigned n_paths = count_paths(named_after);
        /* Numbers are given without gaps, so that the first one that is free ends the search. */
        for (unsigned n = 0; n_paths > 0 && (n < n_paths || unused == NULL); n++) {
                char *text = candidate(named_after, n, n_paths);
                enum name_use use = text != NULL ? name_use(loads, text, source) : NAME_FREE;
                if (text == NULL || use == NAME_OF_SOURCE) {
                        free(unused);
                        unused = text;
                        break;
                }
                if (use == NAME_FREE && unused == NULL)
                        unused = text;
                else
                        free(text);
        }
        *name = unused;
        return unused != NULL ? 0 : error_no_memory(error);
}

int loads_default_name(const struct loads *loads, const char *source, const char *named_after, char **name,
                       struct error *error)
{
        cleanup_free char *canonical = NULL, *after = NULL;
        int r = source_canonical(source, &canonical, error);
        if (r == 0)
                r = source_canonical(named_after != NULL ? named_after : source, &after, error);
        return r < 0 ? r : find_name(loads, canonical, after, name, error);
}
