/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader/copy_queue.h"

#include <string.h>

/* Spans that fit at first; a block of many small tensors has more. */
#define SPANS 256

int copy_queue_init(struct copy_queue *copy_queue, struct reader *reader, unsigned most)
{
        *copy_queue = (struct copy_queue){.reader = reader, .most = most};
        copy_queue->oldest_first = calloc(most, sizeof(*copy_queue->oldest_first));
        return copy_queue->oldest_first != NULL ? 0 : -1;
}

void copy_queue_deinit(struct copy_queue *copy_queue)
{
        require(copy_queue->n == 0);
        for (size_t i = 0; i < COPY_QUEUE_DEVICES; i++)
                if (copy_queue->copiers[i] != NULL)
                        copy_queue->copiers[i]->ops->copier_free(copy_queue->copiers[i]);
        free(copy_queue->oldest_first);
        free(copy_queue->spans);
        *copy_queue = (struct copy_queue){0};
}

/* Space for one span more. */
static int make_room(struct copy_queue *copy_queue, size_t n)
{
        if (n < copy_queue->room)
                return 0;
        size_t room = copy_queue->room > 0 ? 2 * copy_queue->room : SPANS;
        struct device_span *spans = reallocarray(copy_queue->spans, room, sizeof(*spans));
        if (spans == NULL)
                return -1;
        copy_queue->spans = spans;
        copy_queue->room = room;
        return 0;
}

/* All of the block's spans, neighbours in one. */
static int gather(struct copy_queue *copy_queue, const struct ticket *ticket, const struct read_target *target,
                  const unsigned char *data, size_t *n, struct error *error)
{
        struct plan_cursor cursor;
        struct plan_piece piece;
        *n = 0;
        plan_pieces_begin(ticket->block, &cursor);
        while (plan_pieces_next(ticket->job->plan, ticket->block, &cursor, &piece)) {
                struct segment *segment = &target->segments[piece.segment];
                const unsigned char *from = data + piece.in_block;
                struct device_span *last = *n > 0 ? &copy_queue->spans[*n - 1] : NULL;
                if (last != NULL && last->segment == segment && last->offset + last->len == piece.offset &&
                    (const unsigned char *)last->from + last->len == from) {
                        last->len += piece.len;
                        continue;
                }
                if (make_room(copy_queue, *n) < 0)
                        return error_set(error, STREAMER_ENOMEM, "no memory");
                copy_queue->spans[(*n)++] = (struct device_span){segment, piece.offset, from, piece.len};
        }
        return 0;
}

/* A device without copiers: complete on return. */
static int put(const struct device_span *spans, size_t n, struct error *error)
{
        for (size_t i = 0; i < n; i++) {
                const struct device_span *s = &spans[i];
                int r = s->segment->device->ops->put(s->segment, s->offset, s->from, s->len, error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* One event follows them all: the thread does not wait here for a device that may stall. */
static int copy(struct copy_queue *copy_queue, struct read_target *target, size_t n, struct device_copy *copy,
                struct error *error)
{
        struct device *device = target->segments[0].device;
        struct copier **copier = &copy_queue->copiers[device->number];
        if (*copier == NULL && (*copier = device->ops->copier_new(device, error)) == NULL)
                return error->code;
        *copy = (struct device_copy){.target = target, .copier = *copier};
        return device->ops->copy(*copier, copy_queue->spans, n, &copy->event, error);
}

static void start_one(struct copy_queue *copy_queue, struct block_copy *block_copy, struct read_target *target,
                      const unsigned char *data)
{
        struct error error = {0};
        bool copies = target->segments[0].device->ops->copy != NULL;
        size_t n;
        int r = gather(copy_queue, &block_copy->ticket, target, data, &n, &error);
        if (r == 0)
                r = copies ? copy(copy_queue, target, n, &block_copy->copies[block_copy->n], &error)
                           : put(copy_queue->spans, n, &error);
        if (r < 0)
                reader_fail_target(copy_queue->reader, block_copy->ticket.job, target, &error);
        else
                block_copy->n += copies;
}

int copy_queue_start(struct copy_queue *copy_queue, const struct ticket *ticket, const unsigned char *data)
{
        const struct read_job *job = ticket->job;
        require(!copy_queue_full(copy_queue));
        struct block_copy *block_copy = &copy_queue->oldest_first[copy_queue->n];
        block_copy->ticket = *ticket;
        block_copy->n = 0;
        for (size_t i = 0; i < job->n_targets; i++)
                if ((ticket->targets >> i & 1) != 0 && !read_target_dead(job->targets[i]))
                        start_one(copy_queue, block_copy, job->targets[i], data);
        if (block_copy->n == 0)
                return 0;
        copy_queue->n++;
        return 1;
}

void copy_queue_mark_copying(struct copy_queue *copy_queue)
{
        require(copy_queue->n > 0);
        reader_mark_copying(copy_queue->reader, &copy_queue->oldest_first[copy_queue->n - 1].ticket);
}

/* Crosses off the copies that are done, or have failed. */
static void ask(struct copy_queue *copy_queue, struct block_copy *block_copy, bool wait)
{
        size_t left = 0;
        for (size_t i = 0; i < block_copy->n; i++) {
                const struct device_copy c = block_copy->copies[i];
                struct error error = {0};
                int copied = c.copier->ops->copied(c.copier, c.event, wait, &error);
                if (copied == 0)
                        block_copy->copies[left++] = c;
                else if (copied < 0)
                        reader_fail_target(copy_queue->reader, block_copy->ticket.job, c.target, &error);
        }
        block_copy->n = left;
}

void copy_queue_wait(struct copy_queue *copy_queue)
{
        ask(copy_queue, &copy_queue->oldest_first[0], true);
}

void copy_queue_reap(struct copy_queue *copy_queue)
{
        for (unsigned i = 0; i < copy_queue->n;) {
                struct block_copy *block_copy = &copy_queue->oldest_first[i];
                ask(copy_queue, block_copy, false);
                if (block_copy->n > 0) {
                        i++;
                        continue;
                }
                struct ticket ticket = block_copy->ticket;
                copy_queue->n--;
                memmove(block_copy, block_copy + 1, (copy_queue->n - i) * sizeof(*block_copy));
                reader_notify_block(&ticket);
                reader_return_ticket(copy_queue->reader, &ticket, NULL);
        }
}
