/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for files: a thread takes a block and fills it by pread.
 *
 * Each block asks the page cache first (file_object.h). A cached block is read buffered, in pieces small enough to be
 * hashed while they are in the CPU's cache; any other with O_DIRECT, so that a cold load leaves no page behind. To read
 * what is cached is work for processors: a load has no more threads for it than there are processors, since more would
 * only be in the way of other loads and of the clients' requests.
 *
 * A block in place is read by one preadv: whole pages to their destination, the partial pages at its edges through the
 * thread's bounce pages, so that no byte of a neighbour changes.
 */
#include "daemon/base/log/log.h"
#include "daemon/io/file/file_object.h"
#include "daemon/io/file/file_read.h"
#include "daemon/io/reader/copy_queue.h"

#include <fcntl.h>
#include <inttypes.h>

#define COPIES 2u /* slots of one thread: one filled, one copied */
/* Buffered reads are hashed after each piece of this size, while it is in the L2 cache. */
#define BUFFERED_PIECE (512 * KiB)
/* Memory is prepared in pieces of the size of a huge page. */
#define PREPARED_PIECE (2 * MiB)

struct pread_thread {
        struct reader_thread base;
        struct read_run run; /* blocks that continue the chunk of the one before; often empty */
        struct fill fill;
        unsigned char *bounce; /* two pages */
        struct copy_queue copy_queue;
};

/* Whole pages to `to`, which is congruent to the offset; the first and the last one to the bounce pages, if the block
 * has only a part of them. */
static void target_in_place(struct pread_target *t, const struct plan_block *block, unsigned char *to,
                            unsigned char *bounce)
{
        uint64_t from = block->file_off, end = from + block->len;
        uint64_t first = round_up(from, PREAD_PAGE), last = round_down(end, PREAD_PAGE); /* first > last: in one page */
        *t = (struct pread_target){.offset = round_down(from, PREAD_PAGE), .want = from % PREAD_PAGE + block->len};
        if (first > from)
                t->iov[t->n++] = (struct iovec){bounce, PREAD_PAGE};
        if (last > first)
                t->iov[t->n++] = (struct iovec){to + (first - from), last - first};
        if (end > last && last >= first)
                t->iov[t->n++] = (struct iovec){bounce + PREAD_PAGE, PREAD_PAGE};
}

static void copy_edges(const struct plan_block *block, unsigned char *to, const unsigned char *bounce)
{
        uint64_t from = block->file_off, end = from + block->len;
        uint64_t first = round_up(from, PREAD_PAGE), last = round_down(end, PREAD_PAGE);
        memcpy(to, bounce + from % PREAD_PAGE, (first < end ? first : end) - from);
        if (last >= first)
                memcpy(to + (last - from), bounce + PREAD_PAGE, end - last);
}

/* By one of the object's descriptors, as pread_target(). */
static int read_target(struct pread_thread *self, const struct ticket *ticket, int fd, struct pread_target *t,
                       struct error *error)
{
        const struct object *object = &ticket->job->objects[ticket->block->file];
        uint64_t since = now_ns();
        const struct pread_watch watch = {.moved_ns = &self->base.moved_ns,
                                          .stopped = &ticket->job->stopped,
                                          .patience_ns = self->base.reader->opts.stall_ns};
        int r = pread_target(object, fd, t, &watch, error);
        stages_add(&ticket->job->stages, fd == object->direct ? STAGE_storage : STAGE_read, now_ns() - since);
        return r;
}

/* Decrypts, if they are encrypted, and hashes the block's next n bytes, which are in their place. */
static int fill_read(struct pread_thread *self, const struct ticket *ticket, unsigned char *data, uint64_t n,
                     struct error *error)
{
        uint64_t since = now_ns();
        int r = reader_fill(ticket, &self->fill, data, data + self->fill.have, n, error);
        stages_add(&ticket->job->stages, STAGE_hash, now_ns() - since);
        return r;
}

/* Pages are prepared piece by piece, so that they are still in the cache when they are filled. */
static int fill_buffered(struct pread_thread *self, const struct ticket *ticket, unsigned char *to, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct read_stream *stream = ticket->stream;
        int fd = stream != NULL ? stream->fd : ticket->job->objects[block->file].fd;
        /* What the kernel reads ahead of a stream's last block belongs to another stream. */
        if (stream != NULL && ticket->block == &ticket->job->plan->blocks[stream->end - 1])
                posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        for (uint64_t done = 0; done < block->len;) {
                uint64_t n = block->len - done < BUFFERED_PIECE ? block->len - done : BUFFERED_PIECE;
                struct pread_target t = {.iov = {{to + done, n}}, .n = 1, .offset = block->file_off + done, .want = n};
                int r = done % PREPARED_PIECE == 0
                                ? reader_block_prepare(self->base.reader, ticket, done, PREPARED_PIECE, error)
                                : 0;
                r = r ?: read_target(self, ticket, fd, &t, error) ?: fill_read(self, ticket, to, n, error);
                if (r < 0)
                        return r;
                done += n;
        }
        return 0;
}

/* 0 and where the block begins, hashed. -1 without an error: O_DIRECT is refused. */
static int fill_direct(struct pread_thread *self, const struct ticket *ticket, unsigned char **data,
                       struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        struct pread_target t = pread_pages(ticket->slot, block->file_off, block->len);
        if (ticket->slot == NULL)
                target_in_place(&t, block, *data, self->bounce);
        int r = reader_block_prepare(self->base.reader, ticket, 0, block->len, error);
        r = r ?: read_target(self, ticket, object->direct, &t, error);
        if (r < 0) {
                if (error->code == 0)
                        log_debug("%s: O_DIRECT refused at offset %" PRIu64 ", read buffered", object->path,
                                  block->file_off);
                return r;
        }
        if (ticket->slot == NULL)
                copy_edges(block, *data, self->bounce);
        else
                *data = ticket->slot + block->file_off % PREAD_PAGE; /* aligned as in the file */
        return fill_read(self, ticket, *data, block->len, error);
}

static void set_limit(struct reader *reader, struct read_job *job, unsigned limit)
{
        if (load_relaxed(&job->limit) == limit)
                return;
        lock_scope(&reader->mutex);
        bool more = limit > job->limit;
        store_relaxed(&job->limit, limit);
        if (more)
                reader_wake_locked(reader);
}

/* Also tells how many threads are of use for the next blocks of its load. A file that can only be read through the page
 * cache may be anywhere. */
static bool is_cached(struct reader *reader, const struct ticket *ticket)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        unsigned most = reader->opts.concurrency, processors = reader->processors;
        bool cached = pread_cached(object, block->file_off, block->len);
        bool in_memory = cached && object->direct >= 0;
        set_limit(reader, ticket->job, in_memory && processors < most ? processors : most);
        return cached;
}

static void do_block(struct pread_thread *self, struct ticket *ticket)
{
        unsigned char *data = reader_block_data(ticket);
        struct error error = {0};
        int r = -1;
        reader_fill_begin(ticket, &self->fill);
        if (!is_cached(self->base.reader, ticket))
                r = fill_direct(self, ticket, &data, &error);
        if (r < 0 && error.code == 0)
                r = fill_buffered(self, ticket, data, &error);
        if (r == 0 && ticket->stream != NULL)
                reader_end_stream(&self->base, ticket);
        if (r < 0)
                reader_return_ticket(&self->base, ticket, &error);
        else
                copy_queue_land(&self->copy_queue, ticket, data);
}

/* The next block of the thread's run; false: it has none, or it is over. */
static bool continue_run(struct pread_thread *self, struct ticket *ticket)
{
        struct copy_queue *copy_queue = &self->copy_queue;
        if (reader_run_is_empty(&self->run))
                return false;
        for (;;) {
                copy_queue_reap(copy_queue);
                bool idle = copy_queue->n == 0; /* else the slot that it needs may be one of these */
                if (copy_queue->n < copy_queue->most && reader_run_take(&self->base, &self->run, idle, ticket))
                        return true;
                if (idle || reader_run_is_over(&self->base, &self->run))
                        break;
                copy_queue_wait(copy_queue);
        }
        reader_fill_deinit(&self->fill);
        reader_run_give_up(self->base.reader, &self->run);
        return false;
}

/* Takes more of the same load while its copies are in flight; waits for work only when none is. Another load's block
 * would wait with these for a device that stalls, and these with that one for storage that hangs. */
static bool next_block(struct pread_thread *self, struct ticket *ticket)
{
        struct copy_queue *copy_queue = &self->copy_queue;
        if (continue_run(self, ticket))
                return true;
        for (;;) {
                copy_queue_reap(copy_queue);
                if (copy_queue->n == 0)
                        return reader_take_ticket(&self->base, &self->run, ticket);
                const struct read_job *job = copy_queue->oldest_first[0].ticket.job;
                if (copy_queue->n < copy_queue->most && reader_try_take_ticket(&self->base, job, &self->run, ticket))
                        return true;
                copy_queue_wait(copy_queue);
        }
}

static void pread_thread_free(struct reader_thread *thread)
{
        struct pread_thread *self = container_of(thread, struct pread_thread, base);
        copy_queue_deinit(&self->copy_queue);
        reader_fill_deinit(&self->fill);
        free(self->bounce);
        free(self);
}

static void *pread_main(void *arg)
{
        struct pread_thread *self = arg;
        struct reader *reader = self->base.reader;
        struct ticket ticket;
        thread_begin("reader");
        while (next_block(self, &ticket))
                do_block(self, &ticket);
        copy_queue_deinit(&self->copy_queue); /* frees copiers, which may take long */
        lock_scope(&reader->mutex);
        if (!reader->stopping) { /* one too many: it is not waited for */
                list_remove(&self->base.link);
                pthread_detach(pthread_self());
                pread_thread_free(&self->base);
        }
        return NULL;
}

static bool pread_thread_init(struct reader_thread *thread)
{
        struct pread_thread *self = container_of(thread, struct pread_thread, base);
        self->bounce = aligned_alloc(PREAD_PAGE, 2 * PREAD_PAGE);
        return copy_queue_init(&self->copy_queue, thread, COPIES) == 0 && self->bounce != NULL;
}

/* ---- streams ----
 *
 * Where each open file is one sequential stream (FUSE: a store's client behind it reads ahead for each, and throws that
 * away when it is asked for another place), few streams are read, each in order: several files, or as many parts of a
 * file as it was opened for. */

static int pread_begin(struct reader *reader, struct read_job *job, struct error *error)
{
        const struct plan *plan = job->plan;
        bool streamed = false, continued = false;
        for (size_t i = 0; i < plan->n_blocks; i++) {
                streamed = streamed || job->objects[plan->blocks[i].file].is_streamed;
                continued = continued || plan->blocks[i].continues;
        }
        /* The order of their chunks has precedence. */
        if (!streamed || continued)
                return 0;
        job->streams = calloc(OBJECT_STREAMS * plan->n_files, sizeof(*job->streams));
        if (job->streams == NULL)
                return error_no_memory(error);
        for (size_t first = 0, end; first < plan->n_blocks; first = end) {
                const struct object *object = &job->objects[plan->blocks[first].file];
                for (end = first; end < plan->n_blocks && plan->blocks[end].file == plan->blocks[first].file; end++)
                        require(end == first || plan->blocks[end].file_off > plan->blocks[end - 1].file_off);
                size_t parts = object->n_streams + 1u, n = end - first;
                for (size_t p = 0; p < parts; p++)
                        job->streams[job->n_streams++] =
                                (struct read_stream){.next = first + n * p / parts,
                                                     .end = first + n * (p + 1) / parts,
                                                     .fd = p > 0 ? object->streams[p - 1] : object->fd};
        }
        require(job->n_streams <= OBJECT_STREAMS * plan->n_files);
        return 0;
}

/* One thread, and only where there is a block for it: it wakes the next one when it has taken it. Threads that wait for
 * a slot for their run take no other block. */
static void pread_wake(struct reader *reader)
{
        if (reader->waiting_runs > 0)
                pthread_cond_broadcast(&reader->runs);
        if (!reader_has_work_locked(reader, READ_PREAD))
                return;
        if (reader->engines[READ_PREAD].waiting > 0)
                pthread_cond_signal(&reader->work);
        else if (reader->engines[READ_PREAD].starting == 0)
                reader_add_thread_locked(reader, READ_PREAD);
}

const struct engine_ops pread_engine_ops = {
        .capacity_min = 1,
        .thread_size = sizeof(struct pread_thread),
        .thread_init = pread_thread_init,
        .thread_main = pread_main,
        .thread_free = pread_thread_free,
        .wake = pread_wake,
        .begin = pread_begin,
};
