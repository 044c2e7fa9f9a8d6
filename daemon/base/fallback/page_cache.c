/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/fallback/page_cache.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"

#include <sys/syscall.h>
#include <sys/uio.h>

#define PAGE 4096

/* The kernel fetches a page that is not cached, so the probe itself changes the answer of the next one. */
static bool page_cached(int fd, uint64_t size, uint64_t page)
{
        char bytes[PAGE];
        uint64_t at = page * PAGE, len = size - at < PAGE ? size - at : PAGE;
        struct iovec iov = {bytes, len};
        return preadv2(fd, &iov, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)len;
}

bool page_cache_holds(int fd, uint64_t size, uint64_t offset, uint64_t len)
{
        uint64_t first = offset / PAGE, n = (offset + len - 1) / PAGE - first + 1;
        uint64_t range[2] = {first * PAGE, n * PAGE};
        struct {
                uint64_t cached, dirty, writeback, evicted, recently_evicted;
        } stat;
        if (syscall(SYS_CACHESTAT, fd, range, &stat, 0) == 0)
                return stat.cached >= n;
        /* Two pages represent the range. They are drawn at random each time: the ones that the last load of this file
         * examined are cached since then, and would be no sample. */
        uint64_t draw = now_ns() * UINT64_C(0x9e3779b97f4a7c15);
        return page_cached(fd, size, first + (draw >> 33) % n) &&
               page_cached(fd, size, first + (draw & 0xffffffff) % n);
}
