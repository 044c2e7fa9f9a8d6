/* SPDX-License-Identifier: Apache-2.0
 *
 * A straggler near the end of a load, when no block is left to take and the throughput has fallen (concurrency.h),
 * first passes the rest of its run to another request; its last block gets a hedge: a second request over another
 * connection, into a slot of its own. The request that completes first wins; a hedge's bytes are copied to their
 * destination and hashed only then, so that the loser's are never used.
 */
#include "daemon/io/remote/range.h"

#include "daemon/base/log/log.h"

#include <string.h>

#define MS UINT64_C(1000000)

/* ---- stragglers ---- */

static void leave_the_rest(struct range *range)
{
        struct http_thread *self = range->thread;
        struct range *other = range_new(self);
        if (other == NULL)
                return;
        reader_lock(self->base.reader);
        reader_run_move_locked(&range->run, &other->run);
        self->n++;
        reader_unlock(self->base.reader);
        list_append(&self->ranges, &other->link);
        range_request_rest(other);
}

void hedge_if_late(struct range *range, uint64_t now)
{
        struct reader *reader = range->thread->base.reader;
        if (!range->first.busy || !range->held || range->hedge.busy || now - range->begun_ns < HTTP_TICK_MS * MS)
                return;
        reader_lock(reader);
        bool late = http_block_late_locked(range->thread, range->run.job, range->begun_ns, now);
        bool last = reader_run_over_locked(&range->run);
        reader_unlock(reader);
        if (late && !last)
                leave_the_rest(range);
        if (!late || !last || (range->hedge_to = reader_slot_get(reader)) == NULL)
                return;
        log_debug("a hedge for a range of %.1f s (%s)", (double)(now - range->begun_ns) / 1e9,
                  range_object(range)->path);
        range_ask(&range->hedge, range->ticket.block->file_off, block_end(range->ticket.block));
}

/* ---- the second request ---- */

void hedge_give_slot(struct range *range)
{
        if (range->hedge_to != NULL)
                reader_slot_put(range->thread->base.reader, range->hedge_to);
        range->hedge_to = NULL;
}

enum http_sink hedge_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct range *range = container_of(t, struct attempt, transfer)->range;
        memcpy(range->hedge_to + t->received, data, n);
        http_job_moved(range_job(range), t->moved_ns, n);
        return HTTP_MORE;
}

void hedge_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        struct range *range = a->range;
        a->busy = false;
        /* The first continues alone; or it is complete as well and is reported next. */
        if (outcome != HTTP_OK || !range->held) {
                hedge_give_slot(range);
                return;
        }
        attempt_cancel(&range->first);
        log_debug("a hedge won (%s)", range_object(range)->path);
        reader_fill_begin(&range->ticket, &range->fill);
        range_feed(range, range->hedge_to, range->ticket.block->len);
        range_land(range);
        range_end(range, NULL);
}
