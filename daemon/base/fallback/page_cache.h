/* SPDX-License-Identifier: Apache-2.0
 *
 * Which bytes of a file are in the page cache.
 *
 * cachestat(2) counts them since 6.5, if this process owns the file or may write to it. Otherwise two pages are probed,
 * on a descriptor with POSIX_FADV_RANDOM.
 */
#ifndef DAEMON_BASE_FALLBACK_PAGE_CACHE_H
#define DAEMON_BASE_FALLBACK_PAGE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* Are these bytes, at least one, of a file of `size` bytes all cached, or probably? */
bool page_cache_holds(int fd, uint64_t size, uint64_t offset, uint64_t len);

#endif
