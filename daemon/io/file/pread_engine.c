/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for files: a thread takes a block and fills it by pread.
 *
 * Each block asks the page cache first (file_object.h). A cached block is read buffered, in pieces small enough to be
 * hashed while they are in the CPU's cache; any other with O_DIRECT, so that a cold load leaves no page behind.
 *
 * A block in place is read by one preadv: whole pages to their destination, the partial pages at its edges through the
 * thread's bounce pages, so that no byte of a neighbour changes.
 */
#include "daemon/base/log/log.h"
#include "daemon/io/file/file_object.h"
#include "daemon/io/reader/copy_queue.h"

#include <inttypes.h>

#define COPIES 2u /* slots of one thread: one filled, one copied */
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
        bool one_page = from / PREAD_PAGE == end / PREAD_PAGE;
        if (head > 0 || one_page)
                t->iov[t->n++] = (struct iovec){bounce, PREAD_PAGE};
        if (one_page)
                return;
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

/* Pages are prepared piece by piece, so that they are still in the cache when they are filled. */
static int fill_buffered(struct pread_thread *self, const struct ticket *ticket, unsigned char *to, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        struct hash_cursor hash;
        reader_hash_begin(ticket, &hash);
        for (uint64_t done = 0; done < block->len;) {
                uint64_t n = block->len - done < BUFFERED_PIECE ? block->len - done : BUFFERED_PIECE;
                struct pread_target t = {.iov = {{to + done, n}}, .n = 1, .offset = block->file_off + done, .want = n};
                int r = done % PREPARED_PIECE == 0 ? reader_block_prepare(ticket, done, PREPARED_PIECE, error) : 0;
                if (r == 0)
                        r = pread_target(object, object->fd, &t, &self->clock, error);
                if (r < 0)
                        return r;
                done += n;
                reader_hash(ticket, &hash, to, done);
        }
        return 0;
}

/* 0 and where the block begins, hashed. -1 without an error: O_DIRECT is refused. */
static int fill_direct(struct pread_thread *self, const struct ticket *ticket, unsigned char **data,
                       struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        uint64_t head = block->file_off % PREAD_PAGE;
        struct pread_target t = {.iov = {{ticket->slot, round_up(head + block->len, PREAD_PAGE)}},
                                 .n = 1,
                                 .offset = block->file_off - head,
                                 .want = head + block->len};
        int r = reader_block_prepare(ticket, 0, block->len, error);
        if (r < 0)
                return r;
        if (ticket->slot == NULL)
                target_in_place(&t, block, *data, self->bounce);
        r = pread_target(object, object->direct, &t, &self->clock, error);
        if (r < 0) {
                if (error->code == 0)
                        log_debug("%s: O_DIRECT refused at offset %" PRIu64 ", read buffered", object->path,
                                  block->file_off);
                return r;
        }
        if (ticket->slot == NULL)
                copy_edges(block, *data, self->bounce);
        else
                *data = ticket->slot + head; /* aligned as in the file */
        struct hash_cursor hash;
        reader_hash_begin(ticket, &hash);
        reader_hash(ticket, &hash, *data, block->len);
        return 0;
}

/* As copy_queue_start() answers, or a failure to read. */
static int fill(struct pread_thread *self, const struct ticket *ticket, struct error *error)
{
        const struct plan_block *block = ticket->block;
        unsigned char *data = reader_block_data(ticket);
        int r = -1;
        if (!pread_cached(&ticket->job->objects[block->file], block->file_off, block->len))
                r = fill_direct(self, ticket, &data, error);
        if (r < 0 && error->code == 0)
                r = fill_buffered(self, ticket, data, error);
        if (r < 0 || ticket->slot == NULL)
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
        if (self->stuck) { /* its read has returned */
                self->stuck = false;
                sub_relaxed(&self->job->stalled, 1);
                reader->engines[READ_PREAD].stuck--;
                reader_add_busy(reader, self->job, 1);
                reader_wake_locked(reader, true); /* jobs that had yielded while it hung */
        }
        self->job = job;
}

static void set_job(struct pread_thread *self, struct read_job *job)
{
        lock_scope(&self->base.reader->mutex);
        set_job_locked(self, job);
}

static void do_block(struct pread_thread *self, struct ticket *ticket)
{
        struct error error = {0};
        store_relaxed(&self->clock.moved_ns, now_ns());
        set_job(self, ticket->job);
        self->clock.direct_ns = self->clock.cached_ns = 0;
        int r = fill(self, ticket, &error);
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
        store_relaxed(&self->clock.moved_ns, now_ns());
        reader_lock(reader);
        set_job_locked(self, job);
        reader_add_busy(reader, job, 1);
        reader_unlock(reader);
        uint64_t since = now_ns();
        copy_queue_wait(&self->copy_queue);
        stages_add(&job->stages, STAGE_copy, now_ns() - since);
        reader_lock(reader);
        set_job_locked(self, NULL);
        reader_add_busy(reader, job, -1);
        reader_unlock(reader);
        copy_queue_reap(&self->copy_queue);
}

/* Takes more of the same load while its copies are in flight; waits for work only when none is. Another load's block
 * would wait with these for a device that stalls, and these with that one for storage that hangs. */
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
        lock_scope(&reader->mutex);
        if (!reader->stopping) { /* one too many: it is not waited for */
                list_remove(&self->base.link);
                pthread_detach(pthread_self());
                pread_free(&self->base);
        }
        return NULL;
}

static bool pread_start(struct reader *reader)
{
        struct pread_thread *self = calloc(1, sizeof(*self));
        if (self == NULL)
                return false;
        self->bounce = aligned_alloc(PREAD_PAGE, 2 * PREAD_PAGE);
        if (copy_queue_init(&self->copy_queue, reader, COPIES) == 0 && self->bounce != NULL &&
            reader_thread_start(reader, READ_PREAD, &self->base, pread_main) == 0)
                return true;
        copy_queue_deinit(&self->copy_queue);
        pread_free(&self->base);
        return false;
}

static void pread_watch(struct reader *reader, uint64_t now)
{
        struct engine *engine = &reader->engines[READ_PREAD];
        list_each_item (struct pread_thread, t, &engine->threads, base.link) {
                uint64_t moved = load_relaxed(&t->clock.moved_ns);
                if (t->job == NULL || t->stuck || now < moved || now - moved < reader->opts.stall_ns)
                        continue;
                t->stuck = true;
                add_relaxed(&t->job->stalled, 1);
                engine->stuck++;
                reader_add_busy(reader, t->job, -1);
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
        engine->capacity = 1;
}

const struct engine_ops pread_engine_ops = {
        .init = pread_init,
        .start = pread_start,
        .wake = pread_wake,
        .watch = pread_watch,
        .free = pread_free,
};
