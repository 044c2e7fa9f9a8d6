/* SPDX-License-Identifier: Apache-2.0
 *
 * An interrupted read is repeated; a file that ends too soon is an error.
 */
#include "daemon/io/file/file_read.h"

#include "daemon/base/sys/machine.h"

#include <errno.h>
#include <inttypes.h>

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

int pread_target(const struct object *object, int fd, struct pread_target *t, uint64_t *moved_ns, struct error *error)
{
        bool direct = fd == object->direct;
        while (t->want > 0) {
                ssize_t n = preadv(fd, t->iov, t->n, (off_t)t->offset);
                if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
                        if (errno == EAGAIN)
                                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
                        continue;
                }
                if (n < 0 && direct && errno == EINVAL)
                        return -1;
                if (n < 0)
                        return error_set(error, STREAMER_EFAILED, "read at offset %" PRIu64 ": %s (%s)", t->offset,
                                         strerror(errno), object->path);
                if (moved_ns != NULL)
                        store_relaxed(moved_ns, now_ns());
                /* O_DIRECT stops off its alignment only where the file ends. */
                if (n == 0 || (direct && (uint64_t)n < t->want && (uint64_t)n % object->direct_align != 0))
                        return error_set(error, STREAMER_EFAILED,
                                         "file cut short: no data at offset %" PRIu64 " of %" PRIu64 " (%s)",
                                         (t->offset + (uint64_t)n), object->version.size, object->path);
                advance(t, (size_t)n);
        }
        return 0;
}

/* The kernel fetches a page that is not cached, so the probe itself changes the answer of the next one. */
static bool page_cached(int fd, uint64_t size, uint64_t page)
{
        char bytes[PREAD_PAGE];
        uint64_t at = page * PREAD_PAGE, len = size - at < PREAD_PAGE ? size - at : PREAD_PAGE;
        struct iovec iov = {bytes, len};
        return preadv2(fd, &iov, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)len;
}

bool pread_cached(const struct object *object, uint64_t offset, uint64_t len)
{
        uint64_t size = object->version.size;
        if (object->direct < 0 || len == 0 || offset + len > size)
                return true;
        uint64_t first = offset / PREAD_PAGE, n = (offset + len - 1) / PREAD_PAGE - first + 1;
        uint64_t range[2] = {first * PREAD_PAGE, n * PREAD_PAGE};
        struct {
                uint64_t cached, dirty, writeback, evicted, recently_evicted;
        } stat;
        if (syscall(SYS_CACHESTAT, object->fd, range, &stat, 0) == 0)
                return stat.cached >= n;
        /* Two pages represent the range. They are drawn at random each time: the ones that the last load of this file
         * examined are cached since then, and would be no sample. */
        uint64_t draw = now_ns() * UINT64_C(0x9e3779b97f4a7c15);
        return page_cached(object->fd, size, first + (draw >> 33) % n) &&
               page_cached(object->fd, size, first + (draw & 0xffffffff) % n);
}
