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

/* The longest candidate that fits a name with its number is numbered, without gaps, so that the first number that is
 * free ends the search. */
static int find_name(const struct loads *loads, const char *source, const char *named_after, char **name,
                     struct error *error)
{
        char *unused = NULL;
        unsigned number = 1; /* of the last candidate, which has it from 2 on */
        cleanup_free char *last = source_default_name(named_after, 0);
        for (unsigned n = 1; last != NULL && (number == 1 || unused == NULL); n++) {
                cleanup_free char *text = number == 1 ? strdup(last) : format_new("%s#%u", last, number);
                cleanup_free char *next = source_default_name(named_after, n);
                enum name_use use = text != NULL ? name_use(loads, text, source) : NAME_FREE;
                if (text == NULL || next == NULL) {
                        free(unused);
                        unused = NULL;
                        break;
                }
                if (use == NAME_OF_SOURCE || (use == NAME_FREE && unused == NULL)) {
                        free(unused);
                        unused = text;
                        text = NULL;
                }
                if (use == NAME_OF_SOURCE)
                        break;
                if (strcmp(next, last) == 0 || strlen(next) > PROTO_NAME_MAX - 12) {
                        number++;
                        continue;
                }
                free(last);
                last = next;
                next = NULL;
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
