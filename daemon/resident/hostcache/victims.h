/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the copies that leave the host cache for another: first those of models that also serve on a GPU, then
 * the least recently used, and none that is superfluous (evict.h). Copies that are in use, are not whole or have a
 * pinned holder stay, and so do the copies of its other ranks.
 *
 * It looks at each generation and each copy a constant number of times, and sorts.
 */
#ifndef DAEMON_RESIDENT_HOSTCACHE_VICTIMS_H
#define DAEMON_RESIDENT_HOSTCACHE_VICTIMS_H

#include "daemon/resident/hostcache/host_copy.h"

/* Changes only marks of the copies. A malloc'd array of those to drop, in order; NULL where all candidates do not
 * free `needed` bytes, or without memory. */
struct host_copy **host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n);

#endif
