/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/preload.h"

#include "daemon/base/util.h"

#include <stdlib.h>
#include <string.h>

void preload_entry_deinit(struct preload_entry *entry)
{
        for (size_t i = 0; i < entry->n_devices; i++)
                free(entry->devices[i]);
        free(entry->devices);
        free(entry->source);
        free(entry->name);
        free(entry->pattern);
}

void preload_list_deinit(struct preload_list *list)
{
        for (size_t i = 0; i < list->n; i++)
                preload_entry_deinit(&list->v[i]);
        free(list->v);
        *list = (struct preload_list){0};
}

bool preload_entry_equal(const struct preload_entry *a, const struct preload_entry *b)
{
        bool same = same_text(a->source, b->source) && same_text(a->name, b->name) &&
                    same_text(a->pattern, b->pattern) && a->rank == b->rank && a->sha256 == b->sha256 &&
                    a->pin == b->pin && a->priority == b->priority && a->keep_alive_ns == b->keep_alive_ns &&
                    a->n_devices == b->n_devices;
        for (size_t i = 0; same && i < a->n_devices; i++)
                same = strcmp(a->devices[i], b->devices[i]) == 0;
        return same;
}
