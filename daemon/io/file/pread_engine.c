/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/file/pread_engine.h"

#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/io/file/direct_io.h"
#include "daemon/io/reader/copy_queue.h"
#include "daemon/io/reader/leaf_hash.h"

#include <inttypes.h>
#include <string.h>

#define FLIGHTS 2u /* slots of one thread: one filled, one copied */
/* Buffered reads are hashed after each piece of this size, while it is in the L2 cache. */
#define BUFFERED_PIECE (512 * KiB)
/* Memory is prepared in pieces of the size of a huge page. */
#define PREPARED_PIECE (2 * MiB)

struct pread_thread {
        struct reader_thread base;
        struct read_job *job; /* under the reader's lock; NULL while idle */
        struct pread_clock clock;
        bool stuck;            /* under the reader's lock */
        unsigned char *bounce; /* two pages */
        struct copy_queue copy_queue;
};

/* ---- blocks ---- */

/* Whole pages to `to`, which is congruent to the offset, the rest to the bounce pages. */
static void target_in_place(struct pread_target *t, const struct plan_block *block, unsigned char *to,
                            unsigned char *bounce)
{
        uint64_t from = block->file_off, end = from + block->len;
        uint64_t head = from % PREAD_PAGE, tail = end % PREAD_PAGE;
        *t = (struct pread_target){.offset = from - head, .want = head + block->len};
        if (from / PREAD_PAGE == end / PREAD_PAGE) { /* inside one page */
                t->iov[t->n++] = (struct iovec){bounce, PREAD_PAGE};
                return;
        }
        if (head > 0)
                t->iov[t->n++] = (struct iovec){bounce, PREAD_PAGE};
        uint64_t first = round_up(from, PREAD_PAGE), last = round_down(end, PREAD_PAGE);
        if (last > first)
                t->iov[t->n++] = (struct iovec){to + (first - from), last - first};
        if (tail > 0)
                t->iov[t->n++] = (struct iovec){bounce + PREAD_PAGE, PREAD_PAGE};
}

static void copy_edges(const struct plan_block *block, unsigned char *to, const unsigned char *bounce)
{
        uint64_t from = block->file_off, end = from + block->len;
        uint64_t head = from % PREAD_PAGE, tail = end % PREAD_PAGE;
        if (from / PREAD_PAGE == end / PREAD_PAGE) {
                memcpy(to, bounce + head, block->len);
                return;
        }
        if (head > 0)
                memcpy(to, bounce + head, PREAD_PAGE - head);
        if (tail > 0)
                memcpy(to + block->len - tail, bounce + PREAD_PAGE, tail);
}

/* Memory for the next `len` bytes, or what is left, of a block of which `done` bytes are read. */
static int prepare(const struct ticket *ticket, uint64_t done, uint64_t len, struct error *error)
{
        const struct plan_block *block = ticket->block;
        if (ticket->slot != NULL)
                return 0;
        struct segment *segment = &ticket->job->targets[0]->segments[block->segment];
        uint64_t left = block->len - done, since = now_ns();
        int r = segment->device->ops->prepare(segment, block->offset + done, len < left ? len : left, error);
        stages_add(&ticket->job->stages, STAGE_memory, now_ns() - since);
        return r;
}

/* Pages are made piece by piece, so that they are still in the cache when they are filled. */
static int fill_buffered(struct pread_thread *self, const struct ticket *ticket, unsigned char *to, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        struct hash_cursor hash;
        reader_hash_begin(ticket, &hash);
        for (uint64_t done = 0; done < block->len;) {
                uint64_t n = block->len - done < BUFFERED_PIECE ? block->len - done : BUFFERED_PIECE;
                struct pread_target t = {.iov = {{to + done, n}}, .n = 1, .offset = block->file_off + done, .want = n};
                int r = done % PREPARED_PIECE == 0 ? prepare(ticket, done, PREPARED_PIECE, error) : 0;
                if (r == 0)
                        r = pread_target(object, object->fd, &t, &self->clock, error);
                if (r < 0)
                        return r;
                done += n;
                reader_hash(ticket, &hash, to, done);
        }
        return 0;
}

static int hash_whole(const struct ticket *ticket, const unsigned char *data)
{
        struct hash_cursor hash;
        reader_hash_begin(ticket, &hash);
        reader_hash(ticket, &hash, data, ticket->block->len);
        return 0;
}

static int fill_in_place(struct pread_thread *self, const struct ticket *ticket, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        struct segment *segment = &ticket->job->targets[0]->segments[block->segment];
        unsigned char *to = segment->base + block->offset;
        if (!pread_cached(object, block->file_off, block->len)) {
                struct pread_target t;
                int r = prepare(ticket, 0, block->len, error);
                if (r < 0)
                        return r;
                target_in_place(&t, block, to, self->bounce);
                r = pread_target(object, object->direct, &t, &self->clock, error);
                if (r == 0) {
                        copy_edges(block, to, self->bounce);
                        return hash_whole(ticket, to);
                }
                if (error->code != 0)
                        return r;
                log_debug("%s: O_DIRECT refused at offset %" PRIu64 ", read buffered", object->path, block->file_off);
        }
        return fill_buffered(self, ticket, to, error);
}

/* As copy_queue_start() answers, or a failure to read. */
static int fill_slot(struct pread_thread *self, const struct ticket *ticket, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        uint64_t head = block->file_off % PREAD_PAGE;
        unsigned char *data = ticket->slot + head; /* O_DIRECT: as in the file */
        int r = -1;
        if (!pread_cached(object, block->file_off, block->len)) {
                struct pread_target t = {.iov = {{ticket->slot, round_up(head + block->len, PREAD_PAGE)}},
                                         .n = 1,
                                         .offset = block->file_off - head,
                                         .want = head + block->len};
                r = pread_target(object, object->direct, &t, &self->clock, error);
                if (r < 0 && error->code != 0)
                        return r;
                if (r == 0)
                        hash_whole(ticket, data);
        }
        if (r < 0) {
                data = reader_slot_data(ticket);
                r = fill_buffered(self, ticket, data, error);
        }
        if (r < 0)
                return r;
        uint64_t since = now_ns();
        r = copy_queue_start(&self->copy_queue, ticket, data);
        stages_add(&ticket->job->stages, STAGE_copy, now_ns() - since);
        return r;
}

/* ---- threads ---- */

static void set_job_locked(struct pread_thread *self, struct read_job *job)
{
        struct reader *reader = self->base.reader;
        if (self->stuck) { /* it came back */
                self->stuck = false;
                __atomic_sub_fetch(&self->job->stalled, 1, __ATOMIC_RELAXED);
                reader->engines[READ_PREAD].stuck--;
                reader_add_busy(reader, self->job);
                reader_wake_locked(reader, true); /* jobs that had yielded while it hung */
        }
        self->job = job;
}

static void set_job(struct pread_thread *self, struct read_job *job)
{
        reader_lock(self->base.reader);
        set_job_locked(self, job);
        reader_unlock(self->base.reader);
}

static void do_block(struct pread_thread *self, struct ticket *ticket)
{
        struct error error = {0};
        __atomic_store_n(&self->clock.moved_ns, now_ns(), __ATOMIC_RELAXED);
        set_job(self, ticket->job);
        self->clock.direct_ns = self->clock.cached_ns = 0;
        int r = ticket->slot == NULL ? fill_in_place(self, ticket, &error) : fill_slot(self, ticket, &error);
        stages_add(&ticket->job->stages, STAGE_storage, self->clock.direct_ns);
        stages_add(&ticket->job->stages, STAGE_read, self->clock.cached_ns);
        if (r == 0)
                reader_notify_block(ticket);
        set_job(self, NULL);
        if (r <= 0)
                reader_return_ticket(self->base.reader, ticket, r < 0 ? &error : NULL);
        else
                copy_queue_mark_copying(&self->copy_queue);
}

/* A thread that waits serves no other job: it takes a place of its job, though not one of its reads. */
static void wait_for_copy(struct pread_thread *self)
{
        struct reader *reader = self->base.reader;
        struct read_job *job = self->copy_queue.oldest_first[0].ticket.job;
        __atomic_store_n(&self->clock.moved_ns, now_ns(), __ATOMIC_RELAXED);
        reader_lock(reader);
        set_job_locked(self, job);
        reader_add_busy(reader, job);
        reader_unlock(reader);
        uint64_t since = now_ns();
        copy_queue_wait(&self->copy_queue);
        stages_add(&job->stages, STAGE_copy, now_ns() - since);
        reader_lock(reader);
        set_job_locked(self, NULL);
        reader_remove_busy(reader, job);
        reader_unlock(reader);
        copy_queue_reap(&self->copy_queue);
}

/* Takes more of the same load while its copies fly; waits for work only when none of them does. Another load's
 * block would wait with these for a device that stalls, and these with that one for storage that hangs. */
static bool next_block(struct pread_thread *self, struct ticket *ticket)
{
        struct copy_queue *copy_queue = &self->copy_queue;
        for (;;) {
                if (copy_queue->n > 0)
                        copy_queue_reap(copy_queue);
                if (copy_queue->n == 0)
                        return reader_take_ticket(self->base.reader, READ_PREAD, self->base.node, ticket);
                const struct read_job *job = copy_queue->oldest_first[0].ticket.job;
                if (!copy_queue_full(copy_queue) &&
                    reader_try_take_ticket(self->base.reader, READ_PREAD, self->base.node, job, ticket))
                        return true;
                wait_for_copy(self);
        }
}

static void pread_free(struct reader_thread *thread)
{
        struct pread_thread *self = container_of(thread, struct pread_thread, base);
        free(self->bounce);
        free(self);
}

static void *pread_main(void *arg)
{
        struct pread_thread *self = arg;
        struct reader *reader = self->base.reader;
        struct ticket ticket;
        thread_begin("reader");
        reader_prefault_ring(reader);
        while (next_block(self, &ticket))
                do_block(self, &ticket);
        copy_queue_deinit(&self->copy_queue);
        reader_lock(reader);
        if (!reader->stopping) { /* one too many: it is not waited for */
                list_remove(&self->base.link);
                pthread_detach(pthread_self());
                pread_free(&self->base);
        }
        reader_unlock(reader);
        return NULL;
}

static bool pread_start(struct reader *reader)
{
        struct pread_thread *self = calloc(1, sizeof(*self));
        if (self == NULL)
                return false;
        self->bounce = aligned_alloc(PREAD_PAGE, 2 * PREAD_PAGE);
        if (copy_queue_init(&self->copy_queue, reader, FLIGHTS) == 0 && self->bounce != NULL &&
            reader_thread_start(reader, READ_PREAD, &self->base, pread_main) == 0)
                return true;
        copy_queue_deinit(&self->copy_queue);
        pread_free(&self->base);
        return false;
}

static void pread_watch(struct reader *reader, uint64_t now)
{
        struct engine *engine = &reader->engines[READ_PREAD];
        list_each (pos, &engine->threads) {
                struct pread_thread *t = container_of(pos, struct pread_thread, base.link);
                uint64_t moved = __atomic_load_n(&t->clock.moved_ns, __ATOMIC_RELAXED);
                if (t->job == NULL || t->stuck || now < moved || now - moved < reader->opts.stall_ns)
                        continue;
                t->stuck = true;
                __atomic_add_fetch(&t->job->stalled, 1, __ATOMIC_RELAXED);
                engine->stuck++;
                reader_remove_busy(reader, t->job);
        }
}

static void pread_wake(struct reader *reader, bool all)
{
        if (all)
                pthread_cond_broadcast(&reader->work);
        else
                pthread_cond_signal(&reader->work);
}

static void pread_init(const struct reader *reader, struct engine *engine)
{
        engine->base = reader->opts.concurrency * READER_THREADS_PER_BLOCK;
        engine->places = 1;
}

const struct engine_ops pread_engine_ops = {
        .init = pread_init,
        .start = pread_start,
        .wake = pread_wake,
        .watch = pread_watch,
        .free = pread_free,
};
