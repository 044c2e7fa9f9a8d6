/* SPDX-License-Identifier: Apache-2.0
 *
 * A publication: the client's side. The daemon lends it memory, segment by segment, which it maps for writing; storages
 * are placed in segments when it begins.
 *
 *   claimed > begun > private (its mappings; the commit is under way) > committed: its lease is the caller's
 *
 * The lease is made with the first memory: whatever happens, the memory is mapped until it is released.
 */
#pragma once

#include "client/lease.h"
#include "proto/published/table.h"

struct lent_segment {
        uint64_t bytes;  /* planned */
        uint32_t number; /* the daemon's; in lease->segments */
        bool mapped;
        int reading; /* a descriptor for reading alone; -1 */
};

struct placed_storage {
        uint32_t segment; /* in publication->segments */
        uint64_t offset, bytes;
        bool requested;
};

struct streamer_publication {
        struct streamer_client *client;
        uint64_t claim;
        uint64_t granularity; /* segments are multiples of this */
        uint64_t page, small; /* but one of at most `small` bytes is a multiple of `page`; small is 0: none is */
        bool as_tensors;      /* STREAMER_PUBLISH_TENSORS */
        struct streamer_lease *lease; /* NULL until it begins */
        struct lent_segment segments[MANIFEST_MAX_SEGMENTS];
        size_t n_segments;
        struct placed_storage *storages;
        size_t n_storages;
        uint64_t table_offset;          /* in the last segment: at a page behind the last storage, or 0 in its own */
        struct published_writer writer; /* tensors and attributes */
        bool is_private;
        bool hopeless; /* the daemon refused the bytes, and would however long one waits */
};

/* Opens a table of a published model that is, or will be, at this place of the lease's segments: published_open(). */
int lease_open_published(const struct streamer_lease *lease, struct published_view *view, const void *table,
                         struct published_storage place, char *text, size_t size);
