/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader's ring, and where it and the threads sit: its slots are placed before anything touches them,
 * touched by the threads as they start, and handed out near the devices that their blocks go to. Where
 * the kernel does not let memory be placed, that is logged and it lies anywhere.
 */
#include "daemon/io/reader.h"

#include "daemon/base/log.h"

#include <errno.h>
#include <string.h>

/* ---- places ---- */

/* Before anything of the ring is touched, which is when memory gets its node. */
void reader_place_ring(struct reader *reader)
{
        const struct numa_choice *numa = &reader->opts.numa;
        if (!staging_place(&reader->staging, numa))
                log_warn("ring: the kernel does not let memory be placed (%s): copies may cross NUMA nodes",
                         strerror(errno));
        for (int node = 0; node < NUMA_NODES; node++) {
                struct reader_place *place = &reader->places[reader->n_places];
                place->node = node;
                reader->n_places += (numa->nodes >> node & 1) != 0 && numa_processors(node, "", &place->processors);
        }
}

int reader_place_thread(struct reader *reader, pthread_attr_t *attr)
{
        if (reader->n_places == 0)
                return NUMA_ANYWHERE;
        const struct reader_place *place = &reader->places[reader->next_place++ % reader->n_places];
        pthread_attr_setaffinity_np(attr, sizeof(place->processors), &place->processors);
        return place->node;
}

/* Slots near one of several nodes are no nearer to the others'. Of a dead target there is no memory. */
int reader_job_node(const struct read_job *job)
{
        int node = NUMA_ANYWHERE;
        bool first = true;
        for (size_t i = 0; i < job->n_targets && job->plan->n_blocks > 0; i++) {
                const struct read_target *target = job->targets[i];
                if (read_target_dead(target))
                        continue;
                int its = target->segments[0].device->numa_node;
                if (!first && its != node)
                        return NUMA_ANYWHERE;
                node = its;
                first = false;
        }
        return node;
}

/* ---- slots ---- */

void reader_touch_ring(struct reader *reader)
{
        reader_lock(reader);
        while (reader->untouched > 0 && !reader->stopping) {
                unsigned char *slot = reader->staging.base + --reader->untouched * reader->staging.stride;
                reader_unlock(reader);
                staging_touch(&reader->staging, slot);
                reader_lock(reader);
                staging_put(&reader->staging, slot);
                reader_wake_locked(reader, false);
        }
        reader_unlock(reader);
}

unsigned char *reader_slot_get(struct reader *reader)
{
        reader_lock(reader);
        unsigned char *slot = staging_get(&reader->staging);
        reader_unlock(reader);
        return slot;
}

void reader_slot_put(struct reader *reader, unsigned char *slot)
{
        reader_lock(reader);
        staging_put(&reader->staging, slot);
        reader_wake_locked(reader, false);
        reader_unlock(reader);
}
