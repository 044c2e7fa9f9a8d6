/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader_pread.h"

#include "daemon/base/log.h"
#include "daemon/io/flight.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef SYS_CACHESTAT
#define SYS_CACHESTAT 451 /* the same number on every architecture */
#endif
#define PAGE UINT64_C(4096)
#define STACK_SIZE (256 * KiB)
#define FLIGHTS 2u /* slots of one thread: one filled, one copied */
/* Buffered reads are hashed after each piece of this size, while it is in the L2 cache. */
#define BUFFERED_PIECE (512 * KiB)

struct pread_thread {
        struct list link; /* in the engine's threads */
        pthread_t thread;
        struct reader *reader;
        int node;              /* whose blocks it takes first */
        struct read_job *job;  /* under the reader's lock; NULL while idle */
        uint64_t moved_ns;     /* atomic: when a byte was last moved */
        uint64_t read_ns;      /* spent in reads of the block at hand */
        bool stuck;            /* under the reader's lock */
        unsigned char *bounce; /* two pages */
        struct flights flights;
};

/* Where bytes go, piece by piece, and how many of them are wanted: O_DIRECT may deliver a few more. */
struct target {
        struct iovec iov[3];
        int n;
        uint64_t offset; /* in the file, of iov[0] */
        uint64_t want;   /* bytes from there */
};

/* ---- system calls, with their retries ---- */

static int cut_short(const struct object *object, uint64_t at, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "file cut short: no data at offset %" PRIu64 " of %" PRIu64 " (%s)",
                         at, object->version.size, object->path);
}

static int failed(const struct object *object, uint64_t at, int errno_value, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "read at offset %" PRIu64 ": %s (%s)", at, strerror(errno_value),
                         object->path);
}

static bool try_again(int errno_value)
{
        if (errno_value == EINTR)
                return true;
        if (errno_value != EAGAIN)
                return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return true;
}

static void advance(struct target *t, size_t n)
{
        t->offset += n;
        t->want -= n < t->want ? n : t->want;
        int first = 0;
        while (first < t->n && n >= t->iov[first].iov_len)
                n -= t->iov[first++].iov_len;
        t->n -= first;
        memmove(t->iov, t->iov + first, (size_t)t->n * sizeof(t->iov[0]));
        if (t->n > 0) {
                t->iov[0].iov_base = (char *)t->iov[0].iov_base + n;
                t->iov[0].iov_len -= n;
        }
}

/* -1 with errno EINVAL alone: the file system does not do this by O_DIRECT after all. */
static int read_target(const struct object *object, int fd, struct target *t, struct pread_thread *self,
                       struct error *error)
{
        bool direct = fd == object->direct;
        uint64_t since = now_ns();
        while (t->want > 0) {
                ssize_t n = preadv(fd, t->iov, t->n, (off_t)t->offset);
                if (n < 0 && try_again(errno))
                        continue;
                if (n < 0 && direct && errno == EINVAL)
                        return -1;
                if (n < 0)
                        return failed(object, t->offset, errno, error);
                if (self != NULL) {
                        uint64_t now = now_ns();
                        self->read_ns += now - since;
                        since = now;
                        __atomic_store_n(&self->moved_ns, now, __ATOMIC_RELAXED);
                }
                /* O_DIRECT stops off its alignment only where the file ends. */
                if (n == 0 || (direct && (uint64_t)n < t->want && (uint64_t)n % object->direct_align != 0))
                        return cut_short(object, t->offset + (uint64_t)n, error);
                advance(t, (size_t)n);
        }
        return 0;
}

/* A page that is not there makes the kernel fetch it: so a probe changes what it looks at. */
static bool page_cached(const struct object *object, uint64_t page)
{
        char bytes[PAGE];
        uint64_t at = page * PAGE;
        uint64_t len = object->version.size - at < PAGE ? object->version.size - at : PAGE;
        struct iovec iov = {bytes, len};
        return preadv2(object->fd, &iov, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)len;
}

/* Two pages speak for the range. They are drawn anew each time: the ones that the last load of this
 * file looked at are in the cache since then, and would tell a story of their own. */
static bool probe_pages(const struct object *object, uint64_t first, uint64_t n)
{
        uint64_t draw = now_ns() * UINT64_C(0x9e3779b97f4a7c15);
        return page_cached(object, first + (draw >> 33) % n) && page_cached(object, first + (draw & 0xffffffff) % n);
}

struct cachestat_range {
        uint64_t offset, len;
};

struct cachestat {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

/* The kernel counts, where it is new enough (6.5) and the file is ours to ask about: 1, 0, or -1. */
static int count_pages(const struct object *object, uint64_t first, uint64_t n)
{
        struct cachestat_range range = {first * PAGE, n * PAGE};
        struct cachestat stat;
        if (syscall(SYS_CACHESTAT, object->fd, &range, &stat, 0) < 0)
                return -1;
        return stat.cached >= n;
}

static bool range_cached(const struct object *object, uint64_t offset, uint64_t len)
{
        if (object->direct < 0 || len == 0 || offset + len > object->version.size)
                return true;
        uint64_t first = offset / PAGE, n = (offset + len - 1) / PAGE - first + 1;
        int counted = count_pages(object, first, n);
        return counted >= 0 ? counted > 0 : probe_pages(object, first, n);
}

/* ---- blocks ---- */

/* Whole pages to `to`, which is congruent to the offset, the rest to the bounce pages. */
static void target_in_place(struct target *t, const struct plan_block *block, unsigned char *to, unsigned char *bounce)
{
        uint64_t from = block->file_off, end = from + block->len;
        uint64_t head = from % PAGE, tail = end % PAGE;
        *t = (struct target){.offset = from - head, .want = head + block->len};
        if (from / PAGE == end / PAGE) { /* inside one page */
                t->iov[t->n++] = (struct iovec){bounce, PAGE};
                return;
        }
        if (head > 0)
                t->iov[t->n++] = (struct iovec){bounce, PAGE};
        uint64_t first = round_up(from, PAGE), last = round_down(end, PAGE);
        if (last > first)
                t->iov[t->n++] = (struct iovec){to + (first - from), last - first};
        if (tail > 0)
                t->iov[t->n++] = (struct iovec){bounce + PAGE, PAGE};
}

static void copy_edges(const struct plan_block *block, unsigned char *to, const unsigned char *bounce)
{
        uint64_t from = block->file_off, end = from + block->len;
        uint64_t head = from % PAGE, tail = end % PAGE;
        if (from / PAGE == end / PAGE) {
                memcpy(to, bounce + head, block->len);
                return;
        }
        if (head > 0)
                memcpy(to, bounce + head, PAGE - head);
        if (tail > 0)
                memcpy(to + block->len - tail, bounce + PAGE, tail);
}

static int fill_buffered(struct pread_thread *self, const struct ticket *ticket, unsigned char *to, struct error *error)
{
        const struct plan_block *block = ticket->block;
        const struct object *object = &ticket->job->objects[block->file];
        struct hash_cursor hash;
        reader_hash_begin(ticket, &hash);
        for (uint64_t done = 0; done < block->len;) {
                uint64_t n = block->len - done < BUFFERED_PIECE ? block->len - done : BUFFERED_PIECE;
                struct target t = {.iov = {{to + done, n}}, .n = 1, .offset = block->file_off + done, .want = n};
                int r = read_target(object, object->fd, &t, self, error);
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
        if (!range_cached(object, block->file_off, block->len)) {
                struct target t;
                target_in_place(&t, block, to, self->bounce);
                r = read_target(object, object->direct, &t, self, error);
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
        uint64_t head = block->file_off % PAGE;
        unsigned char *data = ticket->slot + head;
        int r = -1;
        if (!range_cached(object, block->file_off, block->len)) {
                struct target t = {.iov = {{ticket->slot, round_up(head + block->len, PAGE)}},
                                   .n = 1,
                                   .offset = block->file_off - head,
                                   .want = head + block->len};
                r = read_target(object, object->direct, &t, self, error);
                if (r < 0 && error->code != 0)
                        return r;
                if (r == 0)
                        hash_whole(ticket, data);
        }
        if (r < 0)
                r = fill_buffered(self, ticket, data, error);
        return r < 0 ? r : flights_start(&self->flights, ticket, data);
}

int pread_range(const struct object *object, uint64_t offset, uint64_t len, unsigned char *to, struct error *error)
{
        if (!range_cached(object, offset, len)) {
                uint64_t head = offset % PAGE;
                require(((uintptr_t)to - head) % PAGE == 0);
                struct target t = {.iov = {{to - head, round_up(head + len, PAGE)}},
                                   .n = 1,
                                   .offset = offset - head,
                                   .want = head + len};
                int r = read_target(object, object->direct, &t, NULL, error);
                if (r == 0 || error->code != 0)
                        return r;
        }
        struct target t = {.iov = {{to, len}}, .n = 1, .offset = offset, .want = len};
        return read_target(object, object->fd, &t, NULL, error);
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
        __atomic_store_n(&self->moved_ns, now_ns(), __ATOMIC_RELAXED);
        set_job(self, ticket->job);
        self->read_ns = 0;
        int r = ticket->slot == NULL ? fill_in_place(self, ticket, &error) : fill_slot(self, ticket, &error);
        reader_read_took(ticket, self->read_ns);
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
        __atomic_store_n(&self->moved_ns, now_ns(), __ATOMIC_RELAXED);
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

/* Takes what there is while its copies fly; waits for work only when none of them does. */
static bool next_block(struct pread_thread *self, struct ticket *ticket)
{
        struct flights *flights = &self->flights;
        for (;;) {
                if (flights->n > 0)
                        flights_reap(flights);
                if (flights->n == 0)
                        return reader_take(self->reader, READ_PREAD, self->node, ticket);
                if (!flights_full(flights) && reader_try(self->reader, READ_PREAD, self->node, ticket))
                        return true;
                wait_for_copy(self);
        }
}

static void *pread_main(void *arg)
{
        struct pread_thread *self = arg;
        struct reader *reader = self->reader;
        struct ticket ticket;
        pthread_setname_np(pthread_self(), "reader");
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
        self->bounce = aligned_alloc(PAGE, 2 * PAGE);
        bool ok = flights_init(&self->flights, reader, FLIGHTS) == 0 && self->bounce != NULL;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, STACK_SIZE);
        self->node = reader_place_thread(reader, &attr);
        ok = ok && pthread_create(&self->thread, &attr, pread_main, self) == 0;
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
                uint64_t moved = __atomic_load_n(&t->moved_ns, __ATOMIC_RELAXED);
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
