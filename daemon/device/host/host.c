/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device: segments are memfds that clients map read-only (memfd.c).
 *
 * Pages. The page size of the destination decides the speed of a load more than anything else:
 *   hugetlb   reserved at mmap time, so that a lack of pages is an error here and not a signal later. A control group's
 *             limit is charged page by page instead: if there is one, what it leaves is read first, and reader
 *             threads populate pages before each read (host_prepare), which returns an error. Without a limit the
 *             reads populate them, while they are in the processor's cache: a tenth faster
 *   thp       reader threads collapse each range before they fill it (collapse.c). Kernels before 6.1 make huge
 *             pages at the first touch, if shmem_enabled allows it on advice
 *   4k        small pages, of 16 or 64 KiB on some kernels: reader threads populate them block by block, before each
 *             read (host_prepare)
 * Nothing is touched here: reader threads fault pages in as they fill them, in parallel.
 *
 * Memory that is lent to a publisher (host_lend) has hugetlb pages only where they are configured: the publisher's map
 * of it becomes copy-on-write, and the kernel kills a process that writes to a hugetlb page when the pool has no other.
 *
 * A memfd is never used for a second model: a client may have kept its map.
 *
 * Trust. Which pages the kernel makes, and whether it clears them later, depends on its version and settings. So the
 * device does not assume that clients see what it has written: at start it fills a small segment of each kind and of
 * lent memory, and compares what a new mapping shows (host_examine). A load compares samples before its model is
 * ready (load/content/spot_check.h). A kind that fails is not used again (host_distrust).
 */
#include "daemon/device/host/host_private.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/text/text.h"
#include "daemon/base/thread/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define UNMAP_SLICE (16 * MiB)
#define EXAMINED (4 * MiB) /* bytes of a pattern, half of it at either end of what is examined */
/* How long what is available for small segments is not read again, if it was more than this. */
#define SMALL_READ_NS (100 * MS)
#define SMALL_RESERVE (64 * MiB)
#define SAMPLE_INTERVAL (64 * MiB)
#define POPULATE_SLICE (8 * MiB)

struct host_device {
        struct device device;
        enum host_pages want;
        struct collapse_kernel kernel;
        bool thp_allowed;          /* by collapsing, or on advice */
        bool fragmentation_logged; /* atomic */
        bool fallback_logged;      /* AUTO got something less than hugetlb */
        uint64_t huge;             /* atomic: bytes of segments of huge pages, touched or not */
        uint64_t held;             /* atomic: bytes of all segments that have their memory */
        bool limited;              /* atomic: the control group limits huge pages, or may */
        char shmem_enabled[16];    /* as it was at start; "": not known */
        /* Atomic: what was available to small segments when it was read last, less what they have taken since. */
        uint64_t small_left, small_read_ns;
};

/* ---- release ---- */

/* Unmaps in slices: munmap() holds the lock of the address space for 0.1 s per GiB of 4 KiB pages, and every thread
 * that needs heap memory waits for it, the loop too. */
static void unmap_slices(unsigned char *base, uint64_t size)
{
        uint64_t most =
                UNMAP_SLICE > machine_pages.huge ? UNMAP_SLICE : machine_pages.huge; /* the kernel splits no page */
        for (uint64_t done = 0, slice; base != NULL && done < size; done += slice) {
                slice = size - done < most ? size - done : most;
                munmap(base + done, slice);
        }
}

static void unmap_segment(struct segment *segment)
{
        unmap_slices(segment->base, segment->size);
        segment->base = NULL;
}

/* ---- what segments hold ---- */

/* Any thread. */
static void hold(struct segment *segment, uint64_t bytes)
{
        add_relaxed(&segment->held, bytes);
        add_relaxed(&container_of(segment->device, struct host_device, device)->held, bytes);
}

/* False: nothing was allocated. */
static bool free_pages(struct segment *segment)
{
        struct host_device *host = container_of(segment->device, struct host_device, device);
        bool allocated = segment->fd >= 0;
        unmap_segment(segment);
        sub_relaxed(&host->held, segment->held);
        segment->held = 0;
        if (allocated && segment->pages == PAGES_HUGETLB)
                sub_relaxed(&host->huge, segment->size);
        if (segment->lent)
                close_fd(&segment->writing_fd);
        close_fd(&segment->fd);
        segment->collapse = collapse_free(segment->collapse);
        return allocated;
}

static void host_release(struct segment *segment)
{
        if (free_pages(segment))
                prefault_release(segment->device->prefault, segment->size);
}

/* ---- pages ---- */

/* A file of a few tensors would waste most of a huge page: its segment has small pages (plan_layout.small). */
static bool is_small(const struct segment *segment)
{
        return segment->size % machine_pages.huge != 0;
}

/* Without those of the pool. */
static enum page_kind shmem_pages(const struct host_device *host)
{
        bool thp = host->want == HOST_PAGES_THP ||
                   (host->want == HOST_PAGES_AUTO && host->thp_allowed && device_trusts(&host->device, PAGES_THP));
        return thp ? PAGES_THP : PAGES_4K;
}

/* Lent memory has pages of the pool only where they are configured. */
static bool wants_hugetlb(const struct host_device *host, bool lent)
{
        return host->want == HOST_PAGES_HUGETLB ||
               (host->want == HOST_PAGES_AUTO && !lent && device_trusts(&host->device, PAGES_HUGETLB));
}

/* Not by fallocate(), which lets one thread at a time make pages of a file of hugetlb. */
static int make_huge_pages(struct segment *segment, uint64_t offset, uint64_t len)
{
        uint64_t from = round_down(offset, machine_pages.huge), to = round_up(offset + len, machine_pages.huge);
        if (madvise(segment->base + from, to - from, MADV_POPULATE_WRITE) < 0 && errno != EINVAL)
                return -1;
        return 0; /* EINVAL: before Linux 5.14 they are made as they are touched */
}

/* The first `ready` bytes of the memfd are populated. -1 with errno. */
static int map_consume_fd(struct host_device *host, int memfd, enum page_kind pages, uint64_t ready,
                          struct segment *segment)
{
        void *base;
        uint64_t size = segment->size;
        cleanup_close int fd = host_memfd_seal_consume_fd(memfd, size, segment->lent, &base);
        if (fd < 0)
                return -1;
        int r = 0;
        if (is_small(segment))
                madvise(base, size, MADV_NOHUGEPAGE); /* it would have one under shmem_enabled=always */
        if (pages == PAGES_THP && host->kernel.supported) {
                segment->collapse = collapse_new(&host->kernel, base, fd, size, ready);
                r = segment->collapse != NULL ? 0 : -1;
        } else if (pages == PAGES_THP) {
                r = madvise(base, size, MADV_HUGEPAGE);
        }
        if (r < 0) {
                int e = errno;
                munmap(base, size);
                errno = e;
                return -1;
        }
        segment->fd = take_fd(&fd);
        segment->base = base;
        segment->pages = pages;
        if (pages == PAGES_HUGETLB)
                add_relaxed(&host->huge, size);
        hold(segment, pages == PAGES_HUGETLB || ready > size ? size : ready); /* those of the pool are promised */
        return 0;
}

/* -1 with errno: EDQUOT is the limit of the control group. Its files need not be there: so one page is made, too. */
static int alloc_hugetlb(struct host_device *host, struct segment *segment)
{
        bool limited;
        uint64_t left = machine_huge_pages_left(load_relaxed(&host->huge), &limited);
        store_relaxed(&host->limited, limited);
        if (left < segment->size) {
                errno = EDQUOT;
                return -1;
        }
        if (map_consume_fd(host, host_memfd_new(PAGES_HUGETLB), PAGES_HUGETLB, 0, segment) < 0)
                return -1;
        if (!limited || make_huge_pages(segment, 0, machine_pages.huge) == 0 || errno != EFAULT)
                return 0;
        free_pages(segment); /* alloc() still holds the bytes */
        errno = EDQUOT;
        return -1;
}

/* What all segments can still take, of pages that are not of the pool. */
static uint64_t left_to_segments(const struct host_device *host)
{
        uint64_t memory = machine_available_memory(), reserve = host->device.reserve;
        return memory > reserve ? memory - reserve : 0;
}

/* What the machine has is read from files, which costs more than a small segment: once in a while suffices for many. */
static uint64_t available_memory(struct host_device *host, const struct segment *segment, uint64_t needed)
{
        uint64_t now = now_ns(), read = load_relaxed(&host->small_read_ns), left = load_relaxed(&host->small_left);
        if (!is_small(segment))
                return left_to_segments(host);
        if (read == 0 || now - read > SMALL_READ_NS || left < SMALL_RESERVE) {
                left = left_to_segments(host);
                store_relaxed(&host->small_read_ns, now);
                store_relaxed(&host->small_left, left);
        }
        /* Of threads that do this at once, one may count: it is read again soon, and does not wrap. */
        if (needed <= left)
                store_relaxed(&host->small_left, left - needed);
        return left;
}

/* Pages are allocated as they are touched, and a machine that runs out of memory then kills a process: so what is
 * available is checked first. */
static int alloc_shmem_consume_fd(struct host_device *host, int memfd, enum page_kind pages, uint64_t ready,
                                  struct segment *segment, struct error *error)
{
        cleanup_close int own = memfd;
        uint64_t size = segment->size, needed = size > ready ? size - ready : 0;
        uint64_t available = own >= 0 ? available_memory(host, segment, needed) : UINT64_MAX;
        char want[SIZE_TEXT], have[SIZE_TEXT];
        if (needed > available)
                return error_set(error, STREAMER_ENOMEM,
                                 "host: %s needed, %s available to this machine or the daemon's control group",
                                 size_text(want, needed), size_text(have, available));
        if (own < 0 || map_consume_fd(host, take_fd(&own), pages, ready, segment) < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: segment of %" PRIu64 " bytes", size);
        return 0;
}

static void log_fallback(struct host_device *host, int errno_value)
{
        if (host->fallback_logged)
                return;
        host->fallback_logged = true;
        if (errno_value == EDQUOT)
                log_warn("host: the control group's limit of huge pages (hugetlb.*.max) is too small, segments use %s "
                         "pages",
                         host->thp_allowed ? "transparent huge" : "small");
        else if (host->thp_allowed)
                log_info("host: segments use transparent huge pages (%s%s)",
                         errno_value == ENOMEM ? "the pool of reserved ones, vm.nr_hugepages, has too few"
                                               : "the pool of reserved ones: ",
                         errno_value == ENOMEM ? "" : strerror(errno_value));
        else
                log_warn("host: no huge pages, segments use small pages (the hugetlb pool: %s; transparent huge pages: "
                         "refused)",
                         strerror(errno_value));
}

/* Any failure is ignored: the caller allocates fresh memory. */
static int alloc_prefaulted(struct host_device *host, struct segment *segment)
{
        enum page_kind pages;
        uint64_t ready;
        int fd = prefault_take(host->device.prefault, segment->size, &ready, &pages);
        if (fd < 0 || !device_trusts(&host->device, pages)) {
                close_p(&fd);
                return -1;
        }
        if (pages == PAGES_HUGETLB)
                return map_consume_fd(host, fd, pages, ready, segment);
        return alloc_shmem_consume_fd(host, fd, pages, ready, segment, NULL);
}

static int distrust_error(enum page_kind pages, struct error *error)
{
        return error_set(error, STREAMER_EUNSUPPORTED,
                         "host: %s pages are not used: their bytes were not those that were written",
                         page_kind_name(pages));
}

static int alloc_fresh(struct host_device *host, struct segment *segment, struct error *error)
{
        struct prefault *prefault = host->device.prefault;
        enum page_kind pages = is_small(segment) ? PAGES_4K : shmem_pages(host);
        int r;
        if (!is_small(segment) && wants_hugetlb(host, segment->lent)) {
                if (!device_trusts(&host->device, PAGES_HUGETLB))
                        return distrust_error(PAGES_HUGETLB, error);
                do
                        r = alloc_hugetlb(host, segment);
                while (r < 0 && prefault_drop(prefault));
                if (r == 0)
                        return 0;
                if (host->want == HOST_PAGES_HUGETLB)
                        return error_errno(error, STREAMER_ENOMEM, errno,
                                           "host: %" PRIu64
                                           " bytes of hugetlb pages (vm.nr_hugepages, or the control group's "
                                           "hugetlb.*.max)",
                                           segment->size);
                log_fallback(host, errno);
        }
        if (!device_trusts(&host->device, pages))
                return distrust_error(pages, error);
        do
                r = alloc_shmem_consume_fd(host, host_memfd_new(pages), pages, 0, segment, error);
        while (r < 0 && prefault_drop(prefault));
        return r;
}

static int alloc(struct device *device, uint64_t size, bool lent, struct segment *segment, struct error *error)
{
        struct host_device *host = container_of(device, struct host_device, device);
        *segment = (struct segment){.device = device, .size = size, .fd = -1, .lent = lent, .writing_fd = -1};
        bool small = is_small(segment);
        require(size > 0 && size % machine_pages.small == 0);
        require(!small || host->want != HOST_PAGES_HUGETLB);
        prefault_hold(host->device.prefault, size);
        /* With auto it may be of hugetlb pages. */
        if (!small && !(lent && host->want == HOST_PAGES_AUTO) && alloc_prefaulted(host, segment) == 0)
                return 0;
        int r = alloc_fresh(host, segment, error);
        if (r < 0)
                prefault_release(host->device.prefault, size);
        return r;
}

static int host_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        return alloc(device, size, false, segment, error);
}

/* Mapped to be read: the seals allow nothing else any more. */
static int host_adopt_consume_fd(struct device *device, int fd, uint64_t size, enum page_kind pages,
                                 struct segment *segment, struct error *error)
{
        cleanup_close int own = fd;
        struct stat st;
        *segment = (struct segment){.device = device, .size = size, .fd = -1, .pages = pages};
        if (!host_memfd_sealed(fd) || fstat(fd, &st) < 0 || (uint64_t)st.st_size != size)
                return error_set(error, STREAMER_ECORRUPT, "host: not a sealed segment of %" PRIu64 " bytes", size);
        void *base = host_memfd_map(fd, size, PROT_READ);
        if (base == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: segment of %" PRIu64 " bytes", size);
        segment->base = base;
        segment->fd = take_fd(&own);
        struct host_device *host = container_of(device, struct host_device, device);
        prefault_hold(host->device.prefault, size);
        if (pages == PAGES_HUGETLB)
                add_relaxed(&host->huge, size);
        hold(segment, size);
        return 0;
}

static int host_prepare(struct segment *segment, uint64_t offset, uint64_t len, struct error *error)
{
        struct host_device *host = container_of(segment->device, struct host_device, device);
        uint64_t made = segment->pages == PAGES_HUGETLB || segment->collapse != NULL ? 0 : len;
        int r = 0;
        do {
                if (segment->pages == PAGES_HUGETLB && load_relaxed(&host->limited))
                        r = make_huge_pages(segment, offset, len);
                else if (segment->collapse != NULL)
                        r = collapse_prepare(segment->collapse, offset, len, &made);
                else if (segment->pages == PAGES_4K)
                        r = host_memory_populate(segment->base, segment->fd, offset, len);
        } while (r < 0 && errno == EINTR);
        int e = errno;
        hold(segment, r == 0 || segment->collapse != NULL ? made : 0);
        /* Small pages are no error: fragmented memory makes loads slower, which is logged once. */
        if (collapse_stopped(segment->collapse) &&
            !__atomic_exchange_n(&host->fragmentation_logged, true, __ATOMIC_RELAXED))
                log_warn("host: memory is fragmented: compacting it takes longer than small pages would, the rest of a "
                         "segment gets 4 KiB pages");
        if (r < 0 && e == EFAULT)
                return error_set(error, STREAMER_ENOMEM,
                                 "host: no huge page for %" PRIu64 " bytes: a limit of the control group is reached",
                                 len);
        if (r < 0)
                return error_errno(error, STREAMER_ENOMEM, e, "host: memory for %" PRIu64 " bytes", len);
        return 0;
}

/* A part of a segment. */
struct populator {
        struct segment *segment;
        uint64_t from, to;
        struct error error;
};

static void *populate(void *arg)
{
        struct populator *p = arg;
        struct segment *s = p->segment;
        for (uint64_t at = p->from, len; at < p->to && p->error.code == 0; at += len) {
                len = p->to - at < POPULATE_SLICE ? p->to - at : POPULATE_SLICE;
                if (host_prepare(s, at, len, &p->error) == 0 && s->collapse == NULL && s->pages != PAGES_4K &&
                    make_huge_pages(s, at, len) < 0)
                        error_errno(&p->error, STREAMER_ENOMEM, errno, "host: memory for %" PRIu64 " bytes", s->size);
        }
        return NULL;
}

static void *populate_beside(void *arg)
{
        thread_begin("device-populate");
        return populate(arg);
}

/* By a second thread, too, if it can be started: the publisher waits, and most of the time is spent zeroing. */
static int populate_all(struct segment *segment, struct error *error)
{
        uint64_t half = round_up(segment->size / 2, is_small(segment) ? machine_pages.small : machine_pages.huge);
        struct populator own = {segment, 0, half, {0}}, other = {segment, half, segment->size, {0}};
        pthread_t thread;
        require(half <= segment->size);
        bool started = segment->size > POPULATE_SLICE && thread_start(&thread, NULL, populate_beside, &other) == 0;
        populate(&own);
        if (started)
                pthread_join(thread, NULL);
        else
                populate(&other);
        const struct error *failure = own.error.code != 0 ? &own.error : &other.error;
        if (failure->code != 0)
                *error = *failure;
        return failure->code;
}

/* The client's writes would make small pages, and no huge page can be made once the memory is sealed: so all pages are
 * made now, and a lack of memory is an error here. The daemon's own writable map would prevent the seal. */
static int host_lend(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        int r = alloc(device, size, true, segment, error);
        if (r < 0)
                return r;
        r = populate_all(segment, error);
        int reading = r == 0 ? host_memfd_reopen(segment->fd) : -1;
        if (r == 0 && reading < 0)
                r = error_errno(error, STREAMER_EOS, errno, "host: segment of %" PRIu64 " bytes", size);
        if (r < 0) {
                host_release(segment);
                return r;
        }
        unmap_segment(segment);
        segment->small_bytes = segment_small_bytes(segment);
        segment->collapse = collapse_free(segment->collapse);
        segment->writing_fd = segment->fd;
        segment->fd = reading;
        return 0;
}

static int host_seal(struct segment *segment, struct error *error)
{
        if (!segment->lent)
                return 0;
        if (segment->writing_fd >= 0 && host_memfd_seal_lent(segment->writing_fd) < 0) {
                if (errno == EBUSY)
                        return error_set(error, STREAMER_EBUSY,
                                         "host: a process has a writable mapping of the memory, or I/O to it is under "
                                         "way");
                return error_errno(error, STREAMER_EOS, errno, "host: sealing %" PRIu64 " bytes", segment->size);
        }
        close_fd(&segment->writing_fd);
        void *base = host_memfd_map(segment->fd, segment->size, PROT_READ);
        if (base == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: segment of %" PRIu64 " bytes", segment->size);
        segment->base = base;
        segment->lent = false;
        return 0;
}

static int host_put(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error)
{
        require(offset <= segment->size && len <= segment->size - offset);
        int r = host_prepare(segment, offset, len, error);
        if (r == 0)
                memcpy(segment->base + offset, from, len);
        return r;
}

uint64_t segment_small_bytes(const struct segment *segment)
{
        return segment->small_bytes != 0 ? segment->small_bytes : collapse_small_bytes(segment->collapse);
}

/* On the device's thread. Models may hold what they hold now and what the machine and the control group can still
 * give: a segment is of the pool's pages, or of others. Segments that are charged and have not been filled yet take of
 * that, too. */
static uint64_t host_ceiling(struct device *device)
{
        struct host_device *host = container_of(device, struct host_device, device);
        uint64_t memory = left_to_segments(host), pool = 0, most = 0;
        bool limited;
        if (wants_hugetlb(host, false)) {
                uint64_t left = machine_huge_pages_left(load_relaxed(&host->huge), &limited);
                pool = machine_pool_left() + machine_pool_surplus(memory);
                pool = pool < left ? pool : left;
        }
        if (host->want != HOST_PAGES_HUGETLB)
                most = memory;
        most = most > pool ? most : pool;
        uint64_t held = load_relaxed(&host->held) + prefault_bytes(device->prefault);
        return most < UINT64_MAX - held ? held + most : UINT64_MAX;
}

static int host_view_open(const struct segment *segment, const unsigned char **base, struct error *error)
{
        void *map = host_memfd_map(segment->fd, segment->size, PROT_READ);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: segment of %" PRIu64 " bytes", segment->size);
        *base = map;
        return 0;
}

static void host_view_close(const struct segment *segment, const unsigned char *base)
{
        unmap_slices((unsigned char *)(uintptr_t)base, segment->size);
}

static void host_distrust(struct device *device, enum page_kind pages, const char *why)
{
        struct host_device *host = container_of(device, struct host_device, device);
        if (!device_trusts(device, pages))
                return;
        __atomic_fetch_or(&device->distrusted, 1u << pages, __ATOMIC_RELAXED);
        if (device->pages == pages)
                device->pages = shmem_pages(host);
        log_error("host: %s pages are not used any more: other processes do not see the bytes that were written "
                  "(shmem_enabled %s): %s",
                  page_kind_name(pages), host->shmem_enabled, why);
}

static void host_free(struct device *device)
{
        prefault_free(device->prefault);
        free(container_of(device, struct host_device, device));
}

static const struct device_ops host_ops = {
        .kind = "host",
        .alloc = host_alloc,
        .release = host_release,
        .lend = host_lend,
        .seal = host_seal,
        .adopt_consume_fd = host_adopt_consume_fd,
        .prepare = host_prepare,
        .put = host_put,
        .view_open = host_view_open,
        .view_close = host_view_close,
        .ceiling = host_ceiling,
        .distrust = host_distrust,
        .free = host_free,
};

/* What AUTO would get now; each allocation decides again. */
static enum page_kind expected_pages(struct host_device *host)
{
        struct segment probe = {.device = &host->device, .fd = -1, .size = machine_pages.huge};
        bool hugetlb = wants_hugetlb(host, false);
        if (hugetlb && host->want == HOST_PAGES_AUTO) {
                hugetlb = alloc_hugetlb(host, &probe) == 0;
                free_pages(&probe);
        }
        return hugetlb ? PAGES_HUGETLB : shmem_pages(host);
}

/* ---- what another mapping shows ---- */

#define HALF (EXAMINED / 2)

static void fill_pattern(uint64_t *words)
{
        for (uint64_t i = 0; i < EXAMINED / sizeof(*words); i++)
                words[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Whole huge pages, two of the smallest kind. */
static uint64_t examined_size(void)
{
        return round_up(EXAMINED, machine_pages.huge);
}

/* True also if it cannot be mapped now. */
static bool shows_pattern(const struct segment *segment, const unsigned char *pattern)
{
        const unsigned char *view = NULL;
        if (host_view_open(segment, &view, NULL) < 0)
                return true;
        bool same = memcmp(view, pattern, HALF) == 0 && memcmp(view + segment->size - HALF, pattern + HALF, HALF) == 0;
        host_view_close(segment, view);
        return same;
}

static int alloc_kind(struct host_device *host, enum page_kind pages, struct segment *segment)
{
        if (pages == PAGES_HUGETLB)
                return alloc_hugetlb(host, segment);
        return alloc_shmem_consume_fd(host, host_memfd_new(pages), pages, 0, segment, NULL);
}

/* As a load does it. False: another mapping shows other bytes. A machine that has no memory of this kind at the moment
 * is no reason to distrust it. */
static bool kind_works(struct host_device *host, enum page_kind pages, const unsigned char *pattern)
{
        struct segment segment = {.device = &host->device, .size = examined_size(), .fd = -1, .writing_fd = -1};
        if (alloc_kind(host, pages, &segment) < 0)
                return true;
        bool works = host_put(&segment, 0, pattern, HALF, NULL) < 0 ||
                     host_put(&segment, segment.size - HALF, pattern + HALF, HALF, NULL) < 0 ||
                     shows_pattern(&segment, pattern);
        free_pages(&segment);
        return works;
}

/* As a publisher fills it. */
static bool lent_works(struct host_device *host, const unsigned char *pattern, enum page_kind *pages)
{
        struct segment segment;
        if (host_lend(&host->device, examined_size(), &segment, NULL) < 0)
                return true;
        *pages = segment.pages;
        unsigned char *map = host_memfd_map(segment.writing_fd, segment.size, PROT_READ | PROT_WRITE);
        bool written = map != MAP_FAILED;
        if (written) {
                memcpy(map, pattern, HALF);
                memcpy(map + segment.size - HALF, pattern + HALF, HALF);
                munmap(map, segment.size);
        }
        bool works = !written || host_seal(&segment, NULL) < 0 || shows_pattern(&segment, pattern);
        free_pages(&segment);
        return works;
}

/* Compares what a new mapping shows of memory of each kind that may be used, and distrusts the kinds that fail.
 * STREAMER_EUNSUPPORTED: none is left. */
static int host_examine(struct host_device *host, struct error *error)
{
        bool all = host->want == HOST_PAGES_AUTO;
        const bool used[] = {[PAGES_HUGETLB] = all || host->want == HOST_PAGES_HUGETLB,
                             [PAGES_THP] = (all && host->thp_allowed) || host->want == HOST_PAGES_THP,
                             [PAGES_4K] = all || host->want == HOST_PAGES_4K};
        cleanup_free unsigned char *pattern = malloc(EXAMINED);
        enum page_kind lent;
        if (pattern == NULL)
                return error_set(error, STREAMER_ENOMEM, "host: no memory");
        fill_pattern((uint64_t *)(void *)pattern);
        for (enum page_kind pages = PAGES_HUGETLB; pages <= PAGES_4K; pages++)
                if (used[pages] && !kind_works(host, pages, pattern))
                        host_distrust(&host->device, pages, "seen at start");
        while (!lent_works(host, pattern, &lent))
                host_distrust(&host->device, lent, "seen at start in memory that is lent");
        for (enum page_kind pages = PAGES_HUGETLB; pages <= PAGES_4K; pages++)
                if (used[pages] && device_trusts(&host->device, pages))
                        return 0;
        return error_set(error, STREAMER_EUNSUPPORTED,
                         "host: no kind of page can be used: another mapping of shared memory does not show the bytes "
                         "that were written (shmem_enabled %s)",
                         host->shmem_enabled);
}

/* The daemon works without it if its thread cannot be started. */
static void make_prefault(struct host_device *host, uint64_t bytes)
{
        uint64_t budget = host->device.budget;
        enum page_kind small = host->want == HOST_PAGES_HUGETLB ? PAGES_HUGETLB : shmem_pages(host);
        bool modest = bytes == PREFAULT_AUTO, pool = host->want == HOST_PAGES_AUTO || host->want == HOST_PAGES_HUGETLB;
        const struct prefault_opts opts = {.most = modest ? budget : bytes,
                                           .budget = budget,
                                           .pages = modest ? PAGES_HUGETLB : host->device.pages,
                                           .fallback = modest ? PAGES_HUGETLB : small,
                                           .kernel = &host->kernel,
                                           .modest = modest};
        if ((modest && !pool) || opts.most < machine_pages.huge)
                return;
        host->device.prefault = prefault_new(&opts);
        if (host->device.prefault == NULL)
                log_warn("host: no memory is prefaulted: its thread could not be started");
}

int host_device_new(struct device **device, const struct host_opts *opts, struct wake *wake, struct error *error)
{
        cleanup_free struct host_device *host = calloc(1, sizeof(*host));
        if (host == NULL)
                return error_set(error, STREAMER_ENOMEM, "host: no memory");
        host->want = opts->pages;
        collapse_probe(&host->kernel, opts->collapse != NULL ? opts->collapse : &collapse_calls);
        const char *chosen = host->shmem_enabled;
        bool on_advice = sysfile_chosen(host->shmem_enabled, sizeof(host->shmem_enabled),
                                        "/sys/kernel/mm/transparent_hugepage/shmem_enabled") &&
                         strcmp(chosen, "never") != 0 && strcmp(chosen, "deny") != 0;
        host->thp_allowed = host->kernel.supported || on_advice;
        if (opts->pages == HOST_PAGES_THP && !host->thp_allowed)
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "host: no transparent huge pages for shared memory: the kernel refuses to collapse "
                                 "pages, and /sys/kernel/mm/transparent_hugepage/shmem_enabled does not allow them");
        struct device *d = &host->device;
        d->ops = &host_ops;
        d->caps = DEVICE_PERSISTENT | DEVICE_SMALL_ANYWHERE;
        d->handles = "memfd";
        d->shared = "the machine or the control group has no more";
        snprintf(d->name, sizeof(d->name), "host");
        if (!sysfile_line(d->uuid, sizeof(d->uuid), "/proc/sys/kernel/random/boot_id"))
                snprintf(d->uuid, sizeof(d->uuid), "host");
        d->layout = (struct plan_layout){.page = machine_pages.small,
                                         .align = 1,
                                         .granularity = machine_pages.huge,
                                         .small = opts->pages == HOST_PAGES_HUGETLB ? 0 : machine_pages.huge / 2};
        d->numa_node = -1;
        d->budget = opts->budget;
        d->sample_interval = SAMPLE_INTERVAL;
        if (host_examine(host, error) < 0)
                return error->code;
        d->pages = expected_pages(host);
        d->thread = work_pool_new(wake, "device-host", 1, 1);
        if (d->thread == NULL)
                return error_set(error, STREAMER_ENOMEM, "host: no memory");
        make_prefault(host, opts->prefault);
        host = NULL;
        *device = d;
        return 0;
}
