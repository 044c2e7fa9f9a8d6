/* SPDX-License-Identifier: Apache-2.0
 *
 * The memfds of segments, prefaulted memory and tables.
 *
 * Sealing. A file is mapped writable once, here, and then sealed against growing, shrinking, more seals
 * and future writing, before another process can open it: F_SEAL_FUTURE_WRITE leaves the map made before it
 * writable and refuses every later one. So a client that attaches during the load can only read.
 */
#include "daemon/device/host/host_private.h"

#include "daemon/base/text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U /* Linux 6.3 */
#endif

#define SEALS (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

#define MAP_TRIES 64u

static int memfd_new(const char *name, unsigned flags)
{
        int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | flags);
        if (fd < 0 && errno == EINVAL)
                fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
        return fd;
}

/* The logarithm of its size, as memfd_create() and mmap() take it. */
static unsigned huge_page_flag(void)
{
        return (unsigned)__builtin_ctzll(machine_pages.huge) << MFD_HUGE_SHIFT;
}

int host_memfd_new(enum page_kind pages)
{
        return memfd_new("streamerd-segment", pages == PAGES_HUGETLB ? MFD_HUGETLB | huge_page_flag() : 0);
}

/* An address that was free a moment ago and is a multiple of machine_pages.huge; NULL: none. */
static void *aligned_hint(uint64_t size)
{
        unsigned char *area =
                mmap(NULL, size + machine_pages.huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (area == MAP_FAILED)
                return NULL;
        munmap(area, size + machine_pages.huge);
        return area + (round_up((uintptr_t)area, machine_pages.huge) - (uintptr_t)area);
}

/* The address is a hint, which another thread may take first, and not MAP_FIXED over a reservation: when that
 * fails, for example because the pool of huge pages is empty, the kernel may have removed the reservation, and
 * another thread's mapping may be there by the time it is unmapped. */
void *host_memfd_map(int fd, uint64_t size, int prot)
{
        for (unsigned tries = 0; tries < MAP_TRIES; tries++) {
                bool small = size < machine_pages.huge;
                void *base = mmap(small ? NULL : aligned_hint(size), size, prot, MAP_SHARED, fd, 0);
                if (base == MAP_FAILED || small || (uintptr_t)base % machine_pages.huge == 0)
                        return base;
                munmap(base, size);
        }
        errno = ENOMEM;
        return MAP_FAILED;
}

int host_memfd_seal_consume_fd(int memfd, uint64_t size, bool lent, void **map)
{
        cleanup_close int fd = memfd;
        if (fd < 0)
                return -1;
        if (ftruncate(fd, (off_t)size) < 0)
                return -1;
        void *base = host_memfd_map(fd, size, PROT_READ | PROT_WRITE);
        if (base == MAP_FAILED)
                return -1;
        if (fcntl(fd, F_ADD_SEALS, lent ? F_SEAL_GROW | F_SEAL_SHRINK : SEALS) < 0) {
                int e = errno;
                munmap(base, size);
                errno = e;
                return -1;
        }
        *map = base;
        return take_fd(&fd);
}

/* The kernel refuses F_SEAL_WRITE, and with it all of them, while a writable map exists. */
int host_memfd_seal_lent(int fd)
{
        return fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_WRITE);
}

/* Before Linux 6.7 a shared map counts as writable, and is refused once the file is sealed, if the descriptor is. */
int host_memfd_reopen(int fd)
{
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return open(path, O_RDONLY | O_CLOEXEC);
}

bool host_memfd_sealed(int fd)
{
        int seals = fcntl(fd, F_GET_SEALS);
        return seals >= 0 && (seals & SEALS) == SEALS;
}

/* A page of shared memory is zeroed, and marked so, at the first fault of a mapping or the first read. fallocate()
 * makes pages that are neither; where shmem_enabled allows huge pages it makes whole ones, which MADV_COLLAPSE and
 * khugepaged then map as they are. Bytes that are written through such a map are lost: the first fault of another
 * mapping zeroes the page. So pages are made by write faults. Where populating is refused (gVisor, a filter of system
 * calls) fallocate() reports a lack of memory, and a write that changes no byte is the fault; other threads may be
 * writing. */
int host_memory_populate(unsigned char *base, int fd, uint64_t offset, uint64_t len)
{
        uint64_t from = round_down(offset, machine_pages.small), to = round_up(offset + len, machine_pages.small);
        if (TEMP_FAILURE_RETRY(madvise(base + from, to - from, MADV_POPULATE_WRITE)) == 0)
                return 0;
        if (errno == EFAULT) /* as for any memory that cannot be had */
                errno = ENOMEM;
        if (errno == ENOMEM || TEMP_FAILURE_RETRY(fallocate(fd, 0, (off_t)from, (off_t)(to - from))) < 0)
                return -1;
        for (uint64_t at = from; at < to; at += machine_pages.small)
                __atomic_fetch_or(base + at, 0, __ATOMIC_RELAXED);
        return 0;
}

int host_table_new(struct table *table, const char *name, uint64_t size, struct error *error)
{
        void *map;
        cleanup_close int fd = host_memfd_seal_consume_fd(memfd_new(name, 0), size, false, &map);
        if (fd < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "table of %" PRIu64 " bytes", size);
        /* Its pages now, so that a machine without memory says so here. */
        if (host_memory_populate(map, fd, 0, size) < 0) {
                int e = errno;
                munmap(map, size);
                return error_errno(error, STREAMER_ENOMEM, e, "table of %" PRIu64 " bytes", size);
        }
        *table = (struct table){take_fd(&fd), map, size};
        return 0;
}

int host_table_copy(struct table *table, const char *name, const void *bytes, uint64_t size, struct error *error)
{
        void *map;
        cleanup_close int memfd = memfd_new(name, 0), fd = -1;
        if (memfd >= 0 && text_write_fd(memfd, bytes, size) == 0)
                fd = host_memfd_seal_consume_fd(take_fd(&memfd), size, false, &map);
        if (fd < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "table of %" PRIu64 " bytes", size);
        *table = (struct table){take_fd(&fd), map, size};
        return 0;
}

int host_table_share(const struct table *table, struct table *shared, struct error *error)
{
        cleanup_close int fd = fcntl(table->fd, F_DUPFD_CLOEXEC, 0);
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, table->size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "table of %" PRIu64 " bytes", table->size);
        *shared = (struct table){take_fd(&fd), map, table->size};
        return 0;
}

void table_drop(struct table *table)
{
        if (table->fd < 0)
                return;
        munmap(table->map, table->size);
        close(table->fd);
        *table = (struct table){.fd = -1};
}
