/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader_pread.h"

#include "daemon/base/log.h"
#include "daemon/base/prompt.h"
#include "daemon/io/flight.h"
#include "daemon/io/pread_file.h"

#include <inttypes.h>
#include <string.h>

#define FLIGHTS 2u /* slots of one thread: one filled, one copied */
/* Buffered reads are hashed after each piece of this size, while it is in the L2 cache. */
#define BUFFERED_PIECE (512 * KiB)

struct pread_thread {
        struct list link; /* in the engine's threads */
        pthread_t thread;
        struct reader *reader;
        int node;             /* whose blocks it takes first */
        struct read_job *job; /* under the reader's lock; NULL while idle */
        struct pread_clock clock;
        bool stuck;            /* under the reader's lock */
        unsigned char *bounce; /* two pages */
        struct flights flights;
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

static int fill_buffered(struct pread_thread *self, const struct ticket *ticket, unsigned char *to, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        struct hash_cursor hash;
        reader_hash_begin(ticket, &hash);
        for (uint64_t done = 0; done < block->len;) {
                uint64_t n = block->len - done < BUFFERED_PIECE ? block->len - done : BUFFERED_PIECE;
                struct pread_target t = {.iov = {{to + done, n}}, .n = 1, .offset = block->file_off + done, .want = n};
                int r = pread_target(object, object->fd, &t, &self->clock, error);
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
        int r = segment->device->ops->prepare(segment, block->offset, block->len, error);
        if (r < 0)
                return r;
        if (!pread_cached(object, block->file_off, block->len)) {
                struct pread_target t;
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

/* As flights_start() answers, or a failure to read. */
static int fill_slot(struct pread_thread *self, const struct ticket *ticket, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        uint64_t head = block->file_off % PREAD_PAGE;
        unsigned char *data = ticket->slot + head;
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
        if (r < 0)
                r = fill_buffered(self, ticket, data, error);
        return r < 0 ? r : flights_start(&self->flights, ticket, data);
}

/* ---- threads ---- */

static void set_job_locked(struct pread_thread *self, struct read_job *job)
{
        struct reader *reader = self->reader;
        if (self->stuck) { /* it came back */
                self->stuck = false;
                __atomic_sub_fetch(&self->job->stalled, 1, __ATOMIC_RELAXED);
                reader->engines[READ_PREAD].stuck--;
                reader_place_taken(reader, self->job);
                reader_wake_locked(reader, true); /* who stood back, as long as it hung */
        }
        self->job = job;
}

static void set_job(struct pread_thread *self, struct read_job *job)
{
        reader_lock(self->reader);
        set_job_locked(self, job);
        reader_unlock(self->reader);
}

static void do_block(struct pread_thread *self, struct ticket *ticket)
{
        struct error error = {0};
        __atomic_store_n(&self->clock.moved_ns, now_ns(), __ATOMIC_RELAXED);
        set_job(self, ticket->job);
        self->clock.read_ns = 0;
        int r = ticket->slot == NULL ? fill_in_place(self, ticket, &error) : fill_slot(self, ticket, &error);
        reader_read_took(ticket, self->clock.read_ns);
        if (r == 0)
                reader_landed(ticket);
        set_job(self, NULL);
        if (r <= 0)
                reader_give(self->reader, ticket, r < 0 ? &error : NULL);
        else
                flights_leave_place(&self->flights);
}

/* A thread that waits is nobody else's: it takes a place of its job, though not one of its reads. */
static void wait_for_copy(struct pread_thread *self)
{
        struct reader *reader = self->reader;
        struct read_job *job = self->flights.oldest_first[0].ticket.job;
        __atomic_store_n(&self->clock.moved_ns, now_ns(), __ATOMIC_RELAXED);
        reader_lock(reader);
        set_job_locked(self, job);
        reader_place_taken(reader, job);
        reader_unlock(reader);
        flights_wait(&self->flights);
        reader_lock(reader);
        set_job_locked(self, NULL);
        reader_place_left(reader, job);
        reader_unlock(reader);
        flights_reap(&self->flights);
}

/* Takes more of the same load while its copies fly; waits for work only when none of them does. Another load's
 * block would wait with these for a device that stalls, and these with that one for storage that hangs. */
static bool next_block(struct pread_thread *self, struct ticket *ticket)
{
        struct flights *flights = &self->flights;
        for (;;) {
                if (flights->n > 0)
                        flights_reap(flights);
                if (flights->n == 0)
                        return reader_take(self->reader, READ_PREAD, self->node, ticket);
                const struct read_job *job = flights->oldest_first[0].ticket.job;
                if (!flights_full(flights) && reader_try(self->reader, READ_PREAD, self->node, job, ticket))
                        return true;
                wait_for_copy(self);
        }
}

static void *pread_main(void *arg)
{
        struct pread_thread *self = arg;
        struct reader *reader = self->reader;
        struct ticket ticket;
        thread_begin("reader");
        reader_touch_ring(reader);
        while (next_block(self, &ticket))
                do_block(self, &ticket);
        flights_deinit(&self->flights);
        reader_lock(reader);
        if (!reader->stopping) { /* one too many: nobody waits for it */
                list_remove(&self->link);
                pthread_detach(pthread_self());
                free(self->bounce);
                free(self);
        }
        reader_unlock(reader);
        return NULL;
}

static bool pread_start(struct reader *reader)
{
        struct pread_thread *self = calloc(1, sizeof(*self));
        if (self == NULL)
                return false;
        self->reader = reader;
        self->bounce = aligned_alloc(PREAD_PAGE, 2 * PREAD_PAGE);
        bool ok = flights_init(&self->flights, reader, FLIGHTS) == 0 && self->bounce != NULL;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, READER_STACK);
        self->node = reader_place_thread(reader, &attr);
        ok = ok && thread_start(&self->thread, &attr, pread_main, self) == 0;
        pthread_attr_destroy(&attr);
        if (!ok) {
                flights_deinit(&self->flights);
                free(self->bounce);
                free(self);
                return false;
        }
        list_append(&reader->engines[READ_PREAD].threads, &self->link);
        return true;
}

static void pread_watch(struct reader *reader, uint64_t now)
{
        struct engine *engine = &reader->engines[READ_PREAD];
        list_each (pos, &engine->threads) {
                struct pread_thread *t = container_of(pos, struct pread_thread, link);
                uint64_t moved = __atomic_load_n(&t->clock.moved_ns, __ATOMIC_RELAXED);
                if (t->job == NULL || t->stuck || now < moved || now - moved < reader->opts.stall_ns)
                        continue;
                t->stuck = true;
                __atomic_add_fetch(&t->job->stalled, 1, __ATOMIC_RELAXED);
                engine->stuck++;
                reader_place_left(reader, t->job);
        }
}

static void pread_join(struct reader *reader)
{
        list_each_safe (pos, &reader->engines[READ_PREAD].threads) {
                struct pread_thread *t = container_of(pos, struct pread_thread, link);
                list_remove(&t->link);
                pthread_join(t->thread, NULL);
                free(t->bounce);
                free(t);
        }
}

static void pread_detach(struct reader *reader)
{
        list_each (pos, &reader->engines[READ_PREAD].threads)
                pthread_detach(container_of(pos, struct pread_thread, link)->thread);
}

static void pread_wake(struct reader *reader, bool all)
{
        if (all)
                park_call_all(&reader->work);
        else
                park_call(&reader->work);
}

const struct engine_ops reader_pread_ops = {
        .start = pread_start,
        .wake = pread_wake,
        .watch = pread_watch,
        .join = pread_join,
        .detach = pread_detach,
};
