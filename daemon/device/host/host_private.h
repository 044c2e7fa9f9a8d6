/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the host device alone:
 *
 *   host.c       the device; a segment's pages
 *   memfd.c      memfds, their seals and maps
 *   collapse.c   huge pages on request
 *   prefault.c   memory that is allocated ahead of need
 */
#pragma once

#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "daemon/device/device.h"

/* ---- memfds ---- */

/* An empty memfd that can be sealed; -1 with errno. */
int host_memfd_new(enum page_kind pages);

/* Maps `size` bytes; a huge page or more at a multiple of machine_pages.huge: elsewhere the kernel maps small pages,
 * whatever the memory has. MAP_FAILED with errno. */
void *host_memfd_map(int fd, uint64_t size, int prot);

/* `size` bytes of a memfd that no other process has, sealed, with the only writable map it will ever have. -1 with
 * errno. `lent`: sealed against growing and shrinking alone. */
int host_memfd_seal_consume_fd(int memfd, uint64_t size, bool lent, void **map);
/* Seals one that was lent, once no writable map is left: EBUSY. -1 with errno. */
int host_memfd_seal_lent(int fd);
/* Another descriptor, for reading alone. -1 with errno. */
int host_memfd_reopen(int fd);
bool host_memfd_sealed(int fd);
/* Any thread. Makes the pages of [offset, offset + len) of `fd`, mapped writable at `base`; bytes that they have are
 * unchanged. -1 with errno: no memory. */
int host_memory_populate(unsigned char *base, int fd, uint64_t offset, uint64_t len);

/* ---- huge pages on request ---- */

/* How the kernel is asked; tests put their own in place. */
struct collapse_calls {
        int (*collapse)(void *base, uint64_t len); /* 0, or -1 with errno */
        uint64_t (*clock)(void);                   /* processor time of the calling thread, ns */
        uint64_t (*compactions)(void);             /* how often the kernel has compacted memory */
};
extern const struct collapse_calls collapse_calls;

/* What one kernel does; probed once. */
struct collapse_kernel {
        struct collapse_calls calls;
        bool supported;
        uint64_t small_ns; /* processor time of filling one range with small pages */
};

/* Tries one range. Where that is refused (an old kernel, shmem_enabled=deny, a filter of system calls) `supported` is
 * false. A machine that has no huge page at the moment supports it. */
void collapse_probe(struct collapse_kernel *kernel, const struct collapse_calls *calls);

/* Populates the first page of the range at `at` and collapses the range. RANGE_NEW: no memory, with errno. */
enum collapse_range { RANGE_NEW, RANGE_BUSY, RANGE_HUGE, RANGE_SMALL };
enum collapse_range collapse_range(const struct collapse_kernel *kernel, unsigned char *base, int fd, uint64_t at);

struct collapse;

/* For `size` bytes of `fd` mapped at `base`, both multiples of machine_pages.huge; borrows all three. The first `ready`
 * bytes have their pages. NULL: no memory. */
struct collapse *collapse_new(const struct collapse_kernel *kernel, unsigned char *base, int fd, uint64_t size,
                              uint64_t ready);
/* Accepts NULL. Returns NULL. */
struct collapse *collapse_free(struct collapse *collapse);

/* Any thread: when this returns 0 each byte of [offset, offset + len) has a page. -1 with errno: no memory. Adds the
 * bytes of pages that it has made to *made, for small pages at most those of the request. */
int collapse_prepare(struct collapse *collapse, uint64_t offset, uint64_t len, uint64_t *made);

/* Any thread. Bytes of ranges that got small pages, and whether the guard has stopped collapsing. */
uint64_t collapse_small_bytes(const struct collapse *collapse);
bool collapse_stopped(const struct collapse *collapse);

/* ---- prefaulted memory ---- */

#define PREFAULT_RECENT 8u /* segments, whose largest a modest one is made for */

struct prefault_opts {
        uint64_t most;                        /* bytes; rounded down to whole huge pages */
        uint64_t budget;                      /* of segments and prefaulted memory together */
        enum page_kind pages, fallback;       /* fallback: when there are no more of `pages`; the same: none */
        const struct collapse_kernel *kernel; /* makes transparent huge pages; borrowed */
        bool modest;                          /* only huge pages that were set aside and are idle */
};

/* NULL: no memory, or its thread cannot be started. It fills nothing yet. */
struct prefault *prefault_new(const struct prefault_opts *opts);
/* Waits for the end of the thread and frees the memory. NULL. */
struct prefault *prefault_free(struct prefault *prefault);

/* ---- from any thread, without waiting: these, prefault_fill() and prefault_bytes() (device.h) ---- */

/* Segments hold this many bytes more, or fewer. */
void prefault_hold(struct prefault *prefault, uint64_t bytes);
void prefault_release(struct prefault *prefault, uint64_t bytes);

/* ---- from the device's thread; may wait for one huge page ---- */

/* For a segment of `size` bytes, which is held already: a memfd that is the caller's, of any size, whose first *ready
 * bytes are allocated and zero. -1: none exists, or it stays for a larger segment. */
int prefault_take(struct prefault *prefault, uint64_t size, uint64_t *ready, enum page_kind *pages);
/* Memory is short: frees it. False: none existed. */
bool prefault_drop(struct prefault *prefault);
