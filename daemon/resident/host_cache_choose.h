/* SPDX-License-Identifier: Apache-2.0
 *
 * Which copies leave the host cache so that another has room: first those of what serves on a GPU, too, then the least
 * recently used, and none that the rest makes needless (evict.h). Those that are in use, are not whole or have
 * a holder that is pinned stay, with the copies of all its ranks.
 *
 * It looks at each generation and each copy a few times, whatever their number, and sorts.
 */
#ifndef DAEMON_RESIDENT_HOST_CACHE_CHOOSE_H
#define DAEMON_RESIDENT_HOST_CACHE_CHOOSE_H

#include "daemon/resident/host_cache.h"

/* Changes nothing but marks of the copies. Those that bring `needed` bytes, in their order, in an array that is
 * the caller's; NULL where all that may leave do not, or there is no memory. */
struct host_copy **host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n);

#endif
