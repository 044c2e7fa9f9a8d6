/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device: segments are memfds that clients map read-only (host_memfd.h).
 *
 * Pages. The page size of the destination decides the speed of a load more than anything else:
 *   hugetlb   reserved at mmap time, so that a lack of pages shows here and not as a signal. A limit of the
 *             control group is not: it is charged page by page. Where there is one, what it leaves is looked
 *             at first, and the reader threads have pages made ahead of each read (host_prepare), which fails
 *             in words. Elsewhere they are made by the reads, while they are in the processor's cache: a
 *             tenth faster
 *   thp       the kernel's shmem_enabled must allow it on advice
 *   4k        allocated block by block by the reader threads, ahead of each read (host_prepare)
 * Nothing is touched here: reader threads fault pages in as they fill them, in parallel. Where a spare
 * is configured (host_spare.h) a segment is made of it, and only what it lacks is fresh.
 *
 * A memfd is never used for a second model: a client may have kept its map.
 */
#include "daemon/device/host_memfd.h"
#include "daemon/device/host_spare.h"

#include "daemon/base/log.h"
#include "daemon/base/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define UNMAP_SLICE (16 * MiB)

struct host_device {
        struct device device;
        enum host_pages want;
        bool thp_allowed;
        bool told;                /* that AUTO got something less than hugetlb */
        _Atomic uint64_t huge;    /* bytes of segments of huge pages, touched or not */
        _Atomic bool limited;     /* the control group limits huge pages, or may */
        struct host_spare *spare; /* NULL: none is configured */
};

/* ---- giving back ---- */

/* The lock of the address space is held for as long as a call lasts (0.1 s for each GiB of 4 KiB pages), and
 * whoever needs a piece of heap waits for it, the loop too. */
static void unmap_in_slices(unsigned char *base, uint64_t size)
{
        for (uint64_t done = 0, slice; done < size; done += slice) {
                slice = size - done < UNMAP_SLICE ? size - done : UNMAP_SLICE;
                munmap(base + done, slice);
        }
}

static void host_release(struct segment *segment)
{
        struct host_device *host = container_of(segment->device, struct host_device, device);
        if (segment->base != NULL)
                unmap_in_slices(segment->base, segment->size);
        if (segment->fd >= 0) {
                close(segment->fd);
                host_spare_release(host->spare, segment->size);
                if (segment->pages == PAGES_HUGETLB)
                        host->huge -= segment->size;
        }
        segment->base = NULL;
        segment->fd = -1;
}

/* ---- pages ---- */

/* Does the kernel give huge pages to shared memory that asks for them? */
static bool thp_allowed(void)
{
        char text[128] = "";
        FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
        if (f == NULL)
                return false;
        bool read_one = fgets(text, sizeof(text), f) != NULL;
        fclose(f);
        return read_one && (strstr(text, "[advise]") || strstr(text, "[always]") || strstr(text, "[within_size]") ||
                            strstr(text, "[force]"));
}

/* Not by fallocate(), which lets one thread at a time make pages of a file of hugetlb. */
static int make_huge_pages(struct segment *segment, uint64_t offset, uint64_t len)
{
        uint64_t from = round_down(offset, HOST_HUGE_PAGE), to = round_up(offset + len, HOST_HUGE_PAGE);
        if (madvise(segment->base + from, to - from, MADV_POPULATE_WRITE) < 0 && errno != EINVAL)
                return -1;
        return 0; /* EINVAL: before Linux 5.14 they are made as they are touched */
}

static int make_small_pages(struct segment *segment, uint64_t offset, uint64_t len)
{
        uint64_t from = round_down(offset, 4096), to = round_up(offset + len, 4096);
        return fallocate(segment->fd, 0, (off_t)from, (off_t)(to - from));
}

static int hugetlb_consume_fd(struct host_device *host, int memfd, struct segment *segment)
{
        void *base;
        int fd = host_memfd_seal_consume_fd(memfd, segment->size, &base);
        if (fd < 0)
                return -1;
        segment->fd = fd;
        segment->base = base;
        segment->pages = PAGES_HUGETLB;
        host->huge += segment->size;
        return 0;
}

/* -1 with errno: EDQUOT is the limit of the control group. Its files need not be there: so one page is made, too. */
static int try_hugetlb(struct host_device *host, struct segment *segment)
{
        host->limited = machine_huge_pages_limited("");
        if (host->limited && machine_huge_pages_left("", host->huge) < segment->size) {
                errno = EDQUOT;
                return -1;
        }
        if (hugetlb_consume_fd(host, host_memfd_new(PAGES_HUGETLB), segment) < 0)
                return -1;
        if (!host->limited || make_huge_pages(segment, 0, HOST_HUGE_PAGE) == 0 || errno != EFAULT)
                return 0;
        host_release(segment);
        errno = EDQUOT;
        return -1;
}

/* Pages of shared memory are taken as they are touched, and a machine that runs out kills somebody:
 * so ask first what is there. */
static int memory_available(uint64_t size, struct error *error)
{
        uint64_t available = machine_available_memory("");
        if (size <= available)
                return 0;
        return error_set(error, STREAMER_ENOMEM,
                         "host: %" PRIu64 " bytes needed, %" PRIu64 " available on this machine", size, available);
}

/* Of a memfd whose first `ready` bytes are there. */
static int shmem_consume_fd(int memfd, uint64_t ready, bool thp, struct segment *segment, struct error *error)
{
        cleanup_close int own = memfd;
        uint64_t size = segment->size;
        int r = memory_available(size > ready ? size - ready : 0, error);
        if (r < 0)
                return r;
        void *base;
        cleanup_close int fd = host_memfd_seal_consume_fd(take_fd(&own), size, &base);
        if (fd < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: segment of %" PRIu64 " bytes", size);
        if (thp && madvise(base, size, MADV_HUGEPAGE) < 0) {
                int e = errno;
                munmap(base, size);
                return error_errno(error, STREAMER_EUNSUPPORTED, e, "host: transparent huge pages");
        }
        segment->fd = take_fd(&fd);
        segment->base = base;
        segment->pages = thp ? PAGES_THP : PAGES_4K;
        return 0;
}

static void tell_fallback(struct host_device *host, int errno_value)
{
        if (host->told)
                return;
        host->told = true;
        const char *instead = host->thp_allowed ? "transparent huge" : "4 KiB";
        if (errno_value == EDQUOT)
                log_warn(
                        "host: the control group's limit of huge pages (hugetlb.2MB.max) is too small, segments use %s "
                        "pages",
                        instead);
        else
                log_warn("host: no hugetlb pages (%s), segments use %s pages; vm.nr_overcommit_hugepages grants them",
                         strerror(errno_value), instead);
}

/* Whatever is in the way of it, fresh memory is there without the spare. */
static int try_spare(struct host_device *host, struct segment *segment)
{
        struct error error = {0};
        enum page_kind pages;
        uint64_t ready;
        int fd = host_spare_take(host->spare, segment->size, &ready, &pages);
        if (fd < 0)
                return -1;
        if (pages == PAGES_HUGETLB)
                return hugetlb_consume_fd(host, fd, segment);
        return shmem_consume_fd(fd, ready, pages == PAGES_THP, segment, &error);
}

static int alloc_fresh(struct host_device *host, struct segment *segment, struct error *error)
{
        uint64_t size = segment->size;
        if (host->want == HOST_PAGES_AUTO || host->want == HOST_PAGES_HUGETLB) {
                if (try_hugetlb(host, segment) == 0)
                        return 0;
                if (host_spare_drop(host->spare) && try_hugetlb(host, segment) == 0)
                        return 0;
                if (host->want == HOST_PAGES_HUGETLB)
                        return error_errno(error, STREAMER_ENOMEM, errno,
                                           "host: %" PRIu64 " bytes of hugetlb pages (vm.nr_overcommit_hugepages, or "
                                           "the control group's hugetlb.2MB.max)",
                                           size);
                tell_fallback(host, errno);
        }
        bool thp = host->want == HOST_PAGES_THP || (host->want == HOST_PAGES_AUTO && host->thp_allowed);
        int r = shmem_consume_fd(host_memfd_new(thp ? PAGES_THP : PAGES_4K), 0, thp, segment, error);
        if (r < 0 && host_spare_drop(host->spare))
                r = shmem_consume_fd(host_memfd_new(thp ? PAGES_THP : PAGES_4K), 0, thp, segment, error);
        return r;
}

static int host_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        struct host_device *host = container_of(device, struct host_device, device);
        *segment = (struct segment){.device = device, .size = size, .fd = -1};
        require(size > 0 && size % HOST_HUGE_PAGE == 0);
        host_spare_hold(host->spare, size);
        if (try_spare(host, segment) == 0)
                return 0;
        int r = alloc_fresh(host, segment, error);
        if (r < 0)
                host_spare_release(host->spare, size);
        return r;
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
        void *base = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: segment of %" PRIu64 " bytes", size);
        segment->base = base;
        segment->fd = take_fd(&own);
        struct host_device *host = container_of(device, struct host_device, device);
        host_spare_hold(host->spare, size);
        if (pages == PAGES_HUGETLB)
                host->huge += size;
        return 0;
}

static int host_prepare(struct segment *segment, uint64_t offset, uint64_t len, struct error *error)
{
        const struct host_device *host = container_of(segment->device, struct host_device, device);
        int r = 0;
        do {
                if (segment->pages == PAGES_HUGETLB && host->limited)
                        r = make_huge_pages(segment, offset, len);
                else if (segment->pages == PAGES_4K)
                        r = make_small_pages(segment, offset, len);
        } while (r < 0 && errno == EINTR);
        if (r < 0 && errno == EFAULT)
                return error_set(error, STREAMER_ENOMEM,
                                 "host: no huge page for %" PRIu64 " bytes: a limit of the control group is reached",
                                 len);
        if (r < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: memory for %" PRIu64 " bytes", len);
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

static int host_read(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error)
{
        (void)error;
        require(offset <= segment->size && len <= segment->size - offset);
        memcpy(to, segment->base + offset, len);
        return 0;
}

static void host_handle(const struct segment *segment, struct handle *handle)
{
        *handle = (struct handle){.kind = "memfd", .fd = segment->fd};
}

static void host_spare_may_fill(struct device *device, bool fill)
{
        host_spare_fill(container_of(device, struct host_device, device)->spare, fill);
}

static uint64_t host_spare_ready(const struct device *device)
{
        return host_spare_bytes(container_of(device, const struct host_device, device)->spare);
}

static void host_free(struct device *device)
{
        struct host_device *host = container_of(device, struct host_device, device);
        host_spare_free(host->spare);
        free(host);
}

static void host_describe(struct device *device, struct device_facts *facts)
{
        (void)device;
        *facts = (struct device_facts){.handles = "memfd", .in_service = true};
}

static const struct device_ops host_ops = {
        .kind = "host",
        .alloc = host_alloc,
        .release = host_release,
        .adopt_consume_fd = host_adopt_consume_fd,
        .prepare = host_prepare,
        .put = host_put,
        .read = host_read,
        .handle = host_handle,
        .describe = host_describe,
        .spare_fill = host_spare_may_fill,
        .spare = host_spare_ready,
        .free = host_free,
};

/* What AUTO will get as things stand; each allocation asks again. */
static enum page_kind expected_pages(struct host_device *host)
{
        struct segment probe = {.device = &host->device, .fd = -1, .size = HOST_HUGE_PAGE};
        switch (host->want) {
        case HOST_PAGES_HUGETLB:
                return PAGES_HUGETLB;
        case HOST_PAGES_THP:
                return PAGES_THP;
        case HOST_PAGES_4K:
                return PAGES_4K;
        case HOST_PAGES_AUTO:
                break;
        }
        if (try_hugetlb(host, &probe) == 0) {
                host_release(&probe);
                return PAGES_HUGETLB;
        }
        return host->thp_allowed ? PAGES_THP : PAGES_4K;
}

static void read_boot_id(char *out, size_t size)
{
        snprintf(out, size, "host");
        FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
        if (f == NULL)
                return;
        char line[64];
        if (fgets(line, sizeof(line), f) != NULL) {
                line[strcspn(line, "\n")] = '\0';
                snprintf(out, size, "%s", line);
        }
        fclose(f);
}

static void spare_kinds(const struct host_device *host, struct host_spare_opts *opts)
{
        if (host->want == HOST_PAGES_AUTO || host->want == HOST_PAGES_HUGETLB)
                opts->kinds[opts->n_kinds++] = PAGES_HUGETLB;
        if (opts->modest)
                return;
        if (host->want == HOST_PAGES_THP || (host->want == HOST_PAGES_AUTO && host->thp_allowed))
                opts->kinds[opts->n_kinds++] = PAGES_THP;
        else if (host->want != HOST_PAGES_HUGETLB)
                opts->kinds[opts->n_kinds++] = PAGES_4K;
}

/* The daemon does without it where its thread cannot be started. */
static void make_spare(struct host_device *host, uint64_t bytes)
{
        uint64_t budget = host->device.budget;
        bool modest = bytes == HOST_SPARE_AUTO;
        struct host_spare_opts opts = {.most = modest ? budget : bytes, .budget = budget, .modest = modest, .root = ""};
        spare_kinds(host, &opts);
        if (opts.n_kinds == 0 || opts.most < HOST_HUGE_PAGE)
                return;
        host->spare = host_spare_new(&opts);
        if (host->spare == NULL)
                log_warn("host: no memory is made ready ahead of need: its thread could not be started");
}

int host_device_new(struct device **device, const struct host_opts *opts, struct wake *wake, struct error *error)
{
        struct host_device *host = calloc(1, sizeof(*host));
        if (host == NULL)
                return error_set(error, STREAMER_ENOMEM, "host: no memory");
        host->want = opts->pages;
        host->thp_allowed = thp_allowed();
        if (opts->pages == HOST_PAGES_THP && !host->thp_allowed) {
                free(host);
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "host: transparent huge pages for shared memory are off "
                                 "(/sys/kernel/mm/transparent_hugepage/shmem_enabled)");
        }
        struct device *d = &host->device;
        d->ops = &host_ops;
        d->caps = DEVICE_KEPT;
        snprintf(d->name, sizeof(d->name), "host");
        read_boot_id(d->uuid, sizeof(d->uuid));
        d->layout = (struct device_layout){.page = 4096, .align = 1, .granularity = HOST_HUGE_PAGE, .max_segment = 0};
        d->numa_node = -1;
        d->budget = opts->budget;
        d->pages = expected_pages(host);
        d->thread = work_pool_new(wake, "device-host", 1, 1);
        if (d->thread == NULL) {
                free(host);
                return error_set(error, STREAMER_ENOMEM, "host: no memory");
        }
        make_spare(host, opts->spare);
        *device = d;
        return 0;
}
