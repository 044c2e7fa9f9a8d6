/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader's ring, and where it and the threads sit: its slots are placed before anything touches them,
 * touched by the threads as they start, and handed out near the devices that their blocks go to. Where
 * the kernel does not let memory be placed, that is logged and it lies anywhere.
 */
#include "daemon/io/reader/reader_private.h"

#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/io/reader/engine.h"

#include <errno.h>
#include <string.h>

/* ---- places ---- */

/* Before anything of the ring is touched, which is when memory gets its node. */
void reader_bind_numa(struct reader *reader)
{
        const struct numa_choice *numa = &reader->opts.numa;
        if (!staging_place(&reader->staging, numa))
                log_warn("ring: the kernel does not let memory be placed (%s): copies may cross NUMA nodes",
                         strerror(errno));
        for (int node = 0; node < NUMA_NODES; node++) {
                struct reader_place *place = &reader->places[reader->n_places];
                place->node = node;
                reader->n_places += (numa->nodes >> node & 1) != 0 && numa_processors(node, &place->processors);
        }
}

int reader_set_affinity(struct reader *reader, pthread_attr_t *attr)
{
        if (reader->n_places == 0)
                return NUMA_ANYWHERE;
        const struct reader_place *place = &reader->places[reader->next_place++ % reader->n_places];
        pthread_attr_setaffinity_np(attr, sizeof(place->processors), &place->processors);
        return place->node;
}

int reader_thread_start(struct reader *reader, enum read_engine engine, struct reader_thread *thread,
                        void *(*main)(void *))
{
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, READER_STACK);
        thread->reader = reader;
        thread->node = reader_set_affinity(reader, &attr);
        int r = thread_start(&thread->thread, &attr, main, thread);
        pthread_attr_destroy(&attr);
        if (r == 0)
                list_append(&reader->engines[engine].threads, &thread->link);
        return r;
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

void reader_prefault_ring(struct reader *reader)
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

unsigned char *reader_slot_data(const struct ticket *ticket)
{
        struct plan_cursor cursor;
        struct plan_piece piece;
        plan_pieces_begin(ticket->block, &cursor);
        if (!plan_pieces_next(ticket->job->plan, ticket->block, &cursor, &piece))
                return ticket->slot;
        return ticket->slot + (piece.offset - piece.in_block) % STAGING_EDGE;
}

unsigned char *reader_slot_get(struct reader *reader)
{
        reader_lock(reader);
        unsigned char *slot = staging_get(&reader->staging, NUMA_ANYWHERE);
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
