/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of the host device: one of each kind of pages, and a segment of it.
 *
 * Page kinds that this machine does not grant (hugetlb pages, transparent huge pages of shared memory) are skipped by
 * name.
 */
#pragma once

#include "tests/lib/core.h"

#include "tests/lib/kernel_counters.h"

#include <linux/memfd.h>
#include <sys/resource.h>

/* Kinds of pages as loop tests count them. */
static const enum host_pages kinds[] = {HOST_PAGES_4K, HOST_PAGES_THP, HOST_PAGES_HUGETLB};
static const enum page_kind expected[] = {PAGES_4K, PAGES_THP, PAGES_HUGETLB};

static struct device *device;
static struct segment segment;

static struct error error;

/* NULL, or the reason why this machine has no such pages. */
static const char *device_begin(const struct host_opts *opts)
{
        if (opts->pages == HOST_PAGES_HUGETLB && !hugepages_allow(256 * MiB))
                return "the pool of hugetlb pages cannot be set";
        if (opts->pages == HOST_PAGES_THP)
                shmem_thp_allow();
        if (host_device_new(&device, opts, core_wake, &error) < 0)
                return "no transparent huge pages for shared memory";
        return NULL;
}

#define NEW(...) host_device_new(&device, &(struct host_opts){__VA_ARGS__}, core_wake, &error)

static void device_end(void)
{
        if (device == NULL)
                return;
        if (segment.fd > 0)
                device->ops->release(&segment);
        ck_assert(work_pool_stop(device->thread, now_ns() + 20 * SECOND));
        device = device_free(device);
}

#define BEGIN(...)                                                                                                     \
        do {                                                                                                           \
                const char *why_not = device_begin(&(struct host_opts){__VA_ARGS__});                                  \
                if (why_not != NULL)                                                                                   \
                        SKIP(why_not);                                                                                 \
        } while (0)

/* ---- prefaulted memory ---- */

#define PREFAULT_THREAD "host-prefault"

static struct prefault *prefaulter;

/* Repeats the permission, as the daemon does. */
static inline void fill(uint64_t bytes)
{
        ck_assert_msg(WITHIN(20000, (prefault_fill(prefaulter, true), prefault_bytes(prefaulter) == bytes)),
                      "%ju bytes are ready", (uintmax_t)prefault_bytes(prefaulter));
        threads_await_asleep(PREFAULT_THREAD, 1);
        ck_assert_uint_eq(prefault_bytes(prefaulter), bytes); /* and no more */
        prefault_fill(prefaulter, false);
}
