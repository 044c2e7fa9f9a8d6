/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of a file: whether they are in the page cache, and reading them all, whatever the kernel gives at once.
 * A read that is interrupted is repeated; a file that ends too soon is an error, of the file's length.
 */
#include "daemon/io/pread_file.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#ifndef SYS_CACHESTAT
#define SYS_CACHESTAT 451 /* the same number on every architecture */
#endif

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

static void advance(struct pread_target *t, size_t n)
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

int pread_target(const struct object *object, int fd, struct pread_target *t, struct pread_clock *clock,
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
                if (clock != NULL) {
                        uint64_t now = now_ns();
                        clock->read_ns += now - since;
                        since = now;
                        __atomic_store_n(&clock->moved_ns, now, __ATOMIC_RELAXED);
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
        char bytes[PREAD_PAGE];
        uint64_t at = page * PREAD_PAGE;
        uint64_t len = object->version.size - at < PREAD_PAGE ? object->version.size - at : PREAD_PAGE;
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
        struct cachestat_range range = {first * PREAD_PAGE, n * PREAD_PAGE};
        struct cachestat stat;
        if (syscall(SYS_CACHESTAT, object->fd, &range, &stat, 0) < 0)
                return -1;
        return stat.cached >= n;
}

bool pread_cached(const struct object *object, uint64_t offset, uint64_t len)
{
        if (object->direct < 0 || len == 0 || offset + len > object->version.size)
                return true;
        uint64_t first = offset / PREAD_PAGE, n = (offset + len - 1) / PREAD_PAGE - first + 1;
        int counted = count_pages(object, first, n);
        return counted >= 0 ? counted > 0 : probe_pages(object, first, n);
}

/* ---- other uses ---- */

int pread_range(const struct object *object, uint64_t offset, uint64_t len, unsigned char *to, struct error *error)
{
        if (!pread_cached(object, offset, len)) {
                uint64_t head = offset % PREAD_PAGE;
                require(((uintptr_t)to - head) % PREAD_PAGE == 0);
                struct pread_target t = {.iov = {{to - head, round_up(head + len, PREAD_PAGE)}},
                                         .n = 1,
                                         .offset = offset - head,
                                         .want = head + len};
                int r = pread_target(object, object->direct, &t, NULL, error);
                if (r == 0 || error->code != 0)
                        return r;
        }
        struct pread_target t = {.iov = {{to, len}}, .n = 1, .offset = offset, .want = len};
        return pread_target(object, object->fd, &t, NULL, error);
}
