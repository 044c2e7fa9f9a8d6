/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader/copy_queue.h"

/* Spans that fit at first; a block of many small tensors has more. */
#define SPANS 256

int copy_queue_init(struct copy_queue *copy_queue, struct reader_thread *thread, unsigned most)
{
        *copy_queue = (struct copy_queue){.thread = thread, .most = most};
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

/* All of the block's spans, adjacent ones merged. */
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
                if (*n == copy_queue->spans_max) {
                        size_t max = *n > 0 ? 2 * *n : SPANS;
                        struct device_span *spans = reallocarray(copy_queue->spans, max, sizeof(*spans));
                        if (spans == NULL)
                                return error_no_memory(error);
                        copy_queue->spans = spans;
                        copy_queue->spans_max = max;
                }
                copy_queue->spans[(*n)++] = (struct device_span){segment, piece.offset, from, piece.len};
        }
        return 0;
}

/* One event follows all spans: the thread does not wait here for a device that may stall. The copy to a device without
 * copiers is complete on return. */
static int start_copy(struct copy_queue *copy_queue, struct block_copy *block_copy, struct read_target *target,
                      const unsigned char *data, struct error *error)
{
        struct device *device = target->segments[0].device;
        size_t n;
        int r = gather(copy_queue, &block_copy->ticket, target, data, &n, error);
        if (device->ops->copy == NULL) {
                for (size_t i = 0; r == 0 && i < n; i++) {
                        const struct device_span *s = &copy_queue->spans[i];
                        r = device->ops->put(s->segment, s->offset, s->from, s->len, error);
                }
                return r;
        }
        if (r < 0)
                return r;
        struct copier **copier = &copy_queue->copiers[device->number];
        if (*copier == NULL && (*copier = device->ops->copier_new(device, error)) == NULL)
                return error->code;
        struct device_copy *copy = &block_copy->copies[block_copy->n];
        *copy = (struct device_copy){.target = target, .copier = *copier};
        r = device->ops->copy(*copier, copy_queue->spans, n, &copy->event, error);
        block_copy->n += r == 0;
        return r;
}

/* Removes the copies that are done, or have failed. */
static void check_copies(struct copy_queue *copy_queue, struct block_copy *block_copy, bool wait)
{
        size_t left = 0;
        for (size_t i = 0; i < block_copy->n; i++) {
                const struct device_copy c = block_copy->copies[i];
                struct error error = {0};
                int copied = c.copier->ops->copied(c.copier, c.event, wait, &error);
                if (copied == 0)
                        block_copy->copies[left++] = c;
                else if (copied < 0)
                        reader_fail_target(copy_queue->thread->reader, block_copy->ticket.job, c.target, &error);
        }
        block_copy->n = left;
}

/* The block has landed, unless none of its targets lives. */
static void complete(struct copy_queue *copy_queue, struct ticket *ticket)
{
        struct read_job *job = ticket->job;
        bool lives = false;
        for (size_t i = 0; i < job->n_targets; i++)
                lives = lives || ((ticket->targets >> i & 1) != 0 && !read_target_dead(job->targets[i]));
        if (lives)
                job->landed(job, ticket->block);
        reader_return_ticket(copy_queue->thread, ticket, NULL);
}

void copy_queue_reap(struct copy_queue *copy_queue)
{
        for (unsigned i = 0; i < copy_queue->n;) {
                struct block_copy *block_copy = &copy_queue->oldest_first[i];
                check_copies(copy_queue, block_copy, false);
                if (block_copy->n > 0) {
                        i++;
                        continue;
                }
                struct ticket ticket = block_copy->ticket;
                copy_queue->n--;
                memmove(block_copy, block_copy + 1, (copy_queue->n - i) * sizeof(*block_copy));
                complete(copy_queue, &ticket);
        }
}

void copy_queue_wait(struct copy_queue *copy_queue)
{
        struct reader_thread *thread = copy_queue->thread;
        struct reader *reader = thread->reader;
        struct block_copy *oldest = &copy_queue->oldest_first[0];
        struct read_job *job = oldest->ticket.job;
        uint64_t since = now_ns();
        require(copy_queue->n > 0);
        pthread_mutex_lock(&reader->mutex);
        reader_thread_work_for(thread, job);
        reader_add_busy(reader, job, 1);
        pthread_mutex_unlock(&reader->mutex);
        check_copies(copy_queue, oldest, true);
        stages_add(&job->stages, STAGE_copy, now_ns() - since);
        pthread_mutex_lock(&reader->mutex);
        reader_thread_work_for(thread, NULL);
        reader_add_busy(reader, job, -1);
        pthread_mutex_unlock(&reader->mutex);
        copy_queue_reap(copy_queue);
}

/* False: none is in flight, since they were complete at once, or failed. */
static bool start_copies(struct copy_queue *copy_queue, const struct ticket *ticket, const unsigned char *data)
{
        struct reader_thread *thread = copy_queue->thread;
        struct read_job *job = ticket->job;
        while (copy_queue->n == copy_queue->most)
                copy_queue_wait(copy_queue);
        uint64_t since = now_ns();
        struct block_copy *block_copy = &copy_queue->oldest_first[copy_queue->n];
        block_copy->ticket = *ticket;
        block_copy->n = 0;
        for (size_t i = 0; i < job->n_targets; i++) {
                struct error error = {0};
                struct read_target *target = job->targets[i];
                if ((ticket->targets >> i & 1) != 0 && !read_target_dead(target) &&
                    start_copy(copy_queue, block_copy, target, data, &error) < 0)
                        reader_fail_target(thread->reader, job, target, &error);
        }
        stages_add(&job->stages, STAGE_copy, now_ns() - since);
        if (block_copy->n == 0)
                return false;
        copy_queue->n++;
        block_copy->ticket.copied = true;
        lock_scope(&thread->reader->mutex);
        job->copying++;
        reader_thread_work_for(thread, NULL);
        reader_add_busy(thread->reader, job, -1);
        thread->reader->engines[job->engine].ops->wake(thread->reader);
        return true;
}

void copy_queue_land(struct copy_queue *copy_queue, struct ticket *ticket, const unsigned char *data)
{
        if (ticket->slot == NULL || !start_copies(copy_queue, ticket, data))
                complete(copy_queue, ticket);
}
