/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares all bytes of an entry of the disk cache with the digests of the load that stored it.
 */
#pragma once

#include "daemon/io/disk/disk_cache.h"

/* Adds the bytes that were compared. STREAMER_EFAILED: they differ, or cannot be read, and the entry was removed;
 * STREAMER_ENOENT: it is not stored any more; STREAMER_ECANCELED: *stop, which is atomic, is true; STREAMER_ELIMIT;
 * STREAMER_ENOMEM. */
int disk_verify(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], const bool *stop, uint64_t *bytes,
                struct error *error);
