/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/keep_sets.h"

#include "daemon/base/fdstore.h"
#include "daemon/base/log.h"

#include <inttypes.h>
#include <string.h>

static struct set *set_of(struct list *sets, uint64_t id)
{
        list_each (pos, sets) {
                struct set *set = container_of(pos, struct set, link);
                if (set->id == id)
                        return set;
        }
        struct set *set = calloc(1, sizeof(*set));
        require(set != NULL); /* at the start, of a few hundred bytes */
        set->id = id;
        set->record = -1;
        for (size_t i = 0; i < GENERATION_SEGMENTS; i++)
                set->segments[i] = -1;
        list_append(sets, &set->link);
        return set;
}

struct set *set_free(struct set *set)
{
        close_p(&set->record);
        for (size_t i = 0; i < GENERATION_SEGMENTS; i++)
                close_p(&set->segments[i]);
        list_remove(&set->link);
        free(set);
        return NULL;
}

static void put(struct set *set, int *place, int fd)
{
        set->twice |= *place >= 0;
        close_p(place);
        *place = fd;
}

/* False: not one of our names. */
static bool sort_one(struct sets *sets, const char *name, int fd)
{
        uint64_t id;
        unsigned segment;
        int end = 0;
        if (strcmp(name, KEEP_BOOK) == 0) {
                close_p(&sets->book);
                sets->book = fd;
                sets->books++;
                return true;
        }
        if (sscanf(name, KEEP_PREFIX "p%" SCNu64 "%n", &id, &end) == 1 && name[end] == '\0' && id != 0) {
                struct set *set = set_of(&sets->processes, id);
                put(set, &set->record, fd);
                return true;
        }
        end = 0;
        if (sscanf(name, KEEP_PREFIX "m%" SCNu64 ".%u%n", &id, &segment, &end) == 2 && end > 0 && name[end] == '\0' &&
            segment < GENERATION_SEGMENTS && id != 0) {
                struct set *set = set_of(&sets->models, id);
                put(set, &set->segments[segment], fd);
                if (set->n_segments <= segment)
                        set->n_segments = segment + 1;
                return true;
        }
        end = 0;
        if (sscanf(name, KEEP_PREFIX "m%" SCNu64 ".r%n", &id, &end) == 1 && end > 0 && name[end] == '\0' && id != 0) {
                struct set *set = set_of(&sets->models, id);
                put(set, &set->record, fd);
                return true;
        }
        return false;
}

void sets_sort(struct sets *sets, struct inherit *inherit)
{
        const char *name;
        int fd;
        *sets = (struct sets){.book = -1};
        list_init(&sets->models);
        list_init(&sets->processes);
        while ((fd = inherit_take_named(inherit, KEEP_PREFIX, &name)) >= 0) {
                if (sort_one(sets, name, fd))
                        continue;
                log_warn("fd store: '%s' is nothing of this version's: dropped", name);
                close(fd);
                fdstore_remove(name);
        }
}
