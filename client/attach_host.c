/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of the host device: memfds, mapped read-only and shared, or copy-on-write where the
 * application asked for memory of its own, at multiples of a huge page if possible: elsewhere the kernel maps small
 * pages, whatever the memory has. Nothing is populated: a page is mapped when it is first
 * read, so that an attach costs the same for every size. A descriptor that is smaller than the
 * daemon says would fault under the application's hands later, and so would one that is made
 * smaller: both are refused here. A daemon seals all that it hands out against shrinking.
 */
#include "client/attach.h"
#include "client/fault.h"
#include "streamer/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Of the kernel's default size: a page of the page tables has entries of eight bytes, each for a page, and an entry of
 * the level above is a huge page. A wrong guess costs speed alone. */
static size_t huge_page(void)
{
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        return page * (page / 8);
}

/* A free address that is a multiple of a huge page, as a hint: another thread may take it first. NULL: none. */
static void *aligned_hint(uint64_t size)
{
        size_t huge = huge_page(), area = (size_t)size + huge;
        unsigned char *p = mmap(NULL, area, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
                return NULL;
        munmap(p, area);
        return p + (huge - (uintptr_t)p % huge) % huge;
}

/* Other files than memfds have no seals (EINVAL), and can always be cut. */
static int check_sealed(int fd, uint64_t size, const char *what, struct fault *fault)
{
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0)
                return 0;
        if (seals < 0 && errno != EINVAL)
                return fault_set(fault, STREAMER_EOS, "%s: cannot map %" PRIu64 " bytes: %s", what, size,
                                 strerror(errno));
        return fault_set(fault, STREAMER_EPROTO, "%s: the daemon sent memory that is not sealed against shrinking",
                         what);
}

int map_fd(void **map, int fd, uint64_t size, uint64_t offset, int prot, int flags, const char *what,
           struct fault *fault)
{
        struct stat st;
        uint64_t end;
        *map = NULL;
        if (fd < 0)
                return fault_set(fault, STREAMER_EPROTO, "%s: the daemon sent no descriptor for it", what);
        if (fstat(fd, &st) < 0)
                return fault_set(fault, STREAMER_EOS, "%s: cannot map %" PRIu64 " bytes: %s", what, size,
                                 strerror(errno));
        if (__builtin_add_overflow(size, offset, &end) || end > (uint64_t)st.st_size)
                return fault_set(fault, STREAMER_ECORRUPT,
                                 "%s: %" PRIu64 " bytes were announced, %" PRIu64 " are there", what, size,
                                 (uint64_t)st.st_size);
        int rc = check_sealed(fd, size, what, fault);
        if (rc != 0 || size == 0)
                return rc;
        void *hint = size >= huge_page() ? aligned_hint(size) : NULL;
        void *p = mmap(hint, (size_t)size, prot, flags, fd, (off_t)offset);
        if (p == MAP_FAILED)
                return fault_set(fault, STREAMER_EOS, "%s: cannot map %" PRIu64 " bytes: %s", what, size,
                                 strerror(errno));
        *map = p;
        return 0;
}

bool fd_is_hugetlb(int fd)
{
        struct statfs fs;
        return fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}

static int memfd_map(struct mapping *mapping, const struct handle *handle, enum map_mode mode, struct fault *fault)
{
        int rc = map_fd(&mapping->map, handle->fd, handle->size, handle->offset,
                        PROT_READ | (mode != MODE_READ ? PROT_WRITE : 0),
                        mode == MODE_COPY ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED, "segment", fault);
        if (rc != 0)
                return rc;
        mapping->kind = &handle_kind_memfd;
        mapping->data = mapping->map;
        mapping->size = handle->size;
        mapping->writable = mode != MODE_READ;
        mapping->map_size = (size_t)handle->size;
        return 0;
}

static void memfd_unmap(struct mapping *mapping)
{
        if (mapping->map)
                munmap(mapping->map, mapping->map_size);
        *mapping = (struct mapping){0};
}

/* In one step: no other thread finds the address unmapped. */
static int map_again(const struct mapping *mapping, size_t bytes, int reading, bool writable, struct fault *fault)
{
        int rc = check_sealed(reading, bytes, "publish", fault);
        if (rc != 0 || bytes == 0)
                return rc;
        void *p = mmap(mapping->map, bytes, PROT_READ | (writable ? PROT_WRITE : 0),
                       MAP_FIXED | (writable ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED), reading, 0);
        return p != MAP_FAILED
                       ? 0
                       : fault_set(fault, STREAMER_EOS, "publish: cannot map %zu bytes: %s", bytes, strerror(errno));
}

static int memfd_make_private(struct mapping *mapping, int reading, struct fault *fault)
{
        bool writable = !fd_is_hugetlb(reading);
        int rc = map_again(mapping, mapping->map_size, reading, writable, fault);
        if (rc == 0)
                mapping->writable = writable;
        return rc;
}

static int memfd_protect(struct mapping *mapping, uint64_t bytes, int reading, struct fault *fault)
{
        return fd_is_hugetlb(reading)
                       ? fault_set(fault, STREAMER_EUNSUPPORTED, "publish: the pool may have no page for a copy")
                       : map_again(mapping, (size_t)bytes, reading, true, fault);
}

static int memfd_copy(const struct mapping *mapping, uint64_t offset, void *to, const void *from, size_t size,
                      struct fault *fault)
{
        char *at = (char *)(uintptr_t)mapping->data + offset;
        memcpy(to ?: at, from ?: at, size);
        return 0;
}

const struct handle_kind handle_kind_memfd = {
        .name = "memfd",
        .device_kind = "host",
        .outlives_daemon = true,
        .map = memfd_map,
        .unmap = memfd_unmap,
        .make_private = memfd_make_private,
        .protect = memfd_protect,
        .copy = memfd_copy,
};
