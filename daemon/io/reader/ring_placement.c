/* SPDX-License-Identifier: Apache-2.0
 *
 * NUMA placement of the reader's ring and threads. Slots are placed before they are first touched, touched by the
 * threads as they start, and handed out near the devices of their blocks.
 */
#include "daemon/base/log/log.h"
#include "daemon/io/reader/engine.h"

int reader_set_affinity(struct reader *reader, pthread_attr_t *attr)
{
        if (reader->n_nodes == 0)
                return NUMA_ANYWHERE;
        const struct reader_node *place = &reader->nodes[reader->next_node++ % reader->n_nodes];
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

unsigned char *reader_block_data(const struct ticket *ticket)
{
        const struct plan_block *block = ticket->block;
        struct plan_cursor cursor;
        struct plan_piece piece;
        if (ticket->slot == NULL)
                return ticket->job->targets[0]->segments[block->segment].base + block->offset;
        plan_pieces_begin(block, &cursor);
        if (!plan_pieces_next(ticket->job->plan, block, &cursor, &piece))
                return ticket->slot;
        return ticket->slot + (piece.offset - piece.in_block) % STAGING_EDGE;
}

int reader_block_prepare(const struct ticket *ticket, uint64_t from, uint64_t len, struct error *error)
{
        const struct plan_block *block = ticket->block;
        if (ticket->slot != NULL)
                return 0;
        struct segment *segment = &ticket->job->targets[0]->segments[block->segment];
        uint64_t left = block->len - from, since = now_ns();
        int r = segment->device->ops->prepare(segment, block->offset + from, len < left ? len : left, error);
        stages_add(&ticket->job->stages, STAGE_memory, now_ns() - since);
        return r;
}

unsigned char *reader_slot_get(struct reader *reader)
{
        lock_scope(&reader->mutex);
        return staging_get(&reader->staging, NUMA_ANYWHERE);
}

void reader_slot_put(struct reader *reader, unsigned char *slot)
{
        lock_scope(&reader->mutex);
        staging_put(&reader->staging, slot);
        reader_wake_locked(reader, false);
}
