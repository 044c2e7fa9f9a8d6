/* SPDX-License-Identifier: Apache-2.0
 *
 * An interrupted read is repeated for a while; a file that ends too soon is an error.
 */
#include "daemon/io/file/file_read.h"

#include "daemon/base/sys/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

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

const struct pread_watch pread_unwatched = {.patience_ns = 30 * SECOND};

#define PAUSE_NS MS /* before a file system is asked again */

/* 0: the read is to be repeated. `since`: when bytes were last moved. */
static int ask_again(const struct object *object, const struct pread_target *t, const struct pread_watch *watch,
                     uint64_t since, int errno_value, struct error *error)
{
        uint64_t waited = now_ns() - since;
        if (watch->stopped != NULL && load_relaxed(watch->stopped))
                return error_set(error, STREAMER_ECANCELED, "read at offset %" PRIu64 ": stopped (%s)", t->offset,
                                 object->path);
        if (waited >= watch->patience_ns)
                return error_set(error, STREAMER_EFAILED,
                                 "read at offset %" PRIu64 ": %s, again and again for %" PRIu64 " s (%s)", t->offset,
                                 strerror(errno_value), waited / SECOND, object->path);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        return 0;
}

int pread_target(const struct object *object, int fd, struct pread_target *t, const struct pread_watch *watch,
                 struct error *error)
{
        uint64_t since = now_ns();
        while (t->want > 0) {
                bool direct = fd == object->direct;
                ssize_t n = preadv(fd, t->iov, t->n, (off_t)t->offset);
                if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
                        int r = ask_again(object, t, watch, since, errno, error);
                        if (r < 0)
                                return r;
                        continue;
                }
                if (n < 0 && direct && errno == EINVAL)
                        return -1;
                if (n < 0)
                        return error_set(error, STREAMER_EFAILED, "read at offset %" PRIu64 ": %s (%s)", t->offset,
                                         strerror(errno), object->path);
                since = now_ns();
                if (watch->moved_ns != NULL)
                        store_relaxed(watch->moved_ns, since);
                if (n == 0)
                        return error_set(error, STREAMER_EFAILED,
                                         "file cut short: no data at offset %" PRIu64 " of %" PRIu64 " (%s)", t->offset,
                                         object->version.size, object->path);
                advance(t, (size_t)n);
                /* O_DIRECT has stopped off its alignment: the rest is read through the page cache. */
                if (direct && (uint64_t)n % object->direct_align != 0)
                        fd = object->fd;
        }
        return 0;
}

/* The kernel fetches a page that is not cached, so the probe itself changes the answer of the next one. */
static bool page_cached(int fd, uint64_t size, uint64_t at)
{
        char bytes[PREAD_PAGE];
        uint64_t len = size - at < PREAD_PAGE ? size - at : PREAD_PAGE;
        struct iovec iov = {bytes, len};
        return preadv2(fd, &iov, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)len;
}

/* The kernel says that all is cached to who neither owns the file nor may write to it. */
static bool range_mapped_cached(int fd, const uint64_t range[2])
{
        size_t n = range[1] / machine_pages.small;
        cleanup_free unsigned char *pages = malloc(n);
        void *map = mmap(NULL, range[1], PROT_READ, MAP_SHARED, fd, (off_t)range[0]);
        bool cached = pages != NULL && map != MAP_FAILED && mincore(map, range[1], pages) == 0;
        for (size_t i = 0; cached && i < n; i++)
                cached = (pages[i] & 1) != 0;
        if (map != MAP_FAILED)
                munmap(map, range[1]);
        return cached;
}

struct cachestat_pages {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

bool file_is_cached(const struct object *object)
{
        const uint64_t page = machine_pages.small, n = (object->version.size + page - 1) / page;
        uint64_t range[2] = {0, 0}; /* to the end */
        struct cachestat_pages stat;
        return !object->is_overlay && syscall(SYS_CACHESTAT, object->fd, range, &stat, 0) == 0 && stat.cached >= n;
}

bool pread_cached(const struct object *object, uint64_t offset, uint64_t len)
{
        uint64_t size = object->version.size;
        if (object->direct < 0 || len == 0 || offset + len > size)
                return true;
        uint64_t page = machine_pages.small, first = offset / page, n = (offset + len - 1) / page - first + 1;
        uint64_t range[2] = {first * page, n * page};
        struct cachestat_pages stat;
        if (object->is_overlay)
                return range_mapped_cached(object->fd, range);
        if (syscall(SYS_CACHESTAT, object->fd, range, &stat, 0) == 0)
                return stat.cached >= n;
        /* Two pages represent the range. They are drawn at random each time: the ones that the last load of this file
         * examined are cached since then, and would be no sample. */
        uint64_t draw = now_ns() * UINT64_C(0x9e3779b97f4a7c15);
        return page_cached(object->fd, size, (first + (draw >> 33) % n) * page) &&
               page_cached(object->fd, size, (first + (draw & 0xffffffff) % n) * page);
}
