/* SPDX-License-Identifier: Apache-2.0
 *
 * What a source consisted of when it was last loaded: the objects, in their order, with the ids of their copies. With
 * it a source whose store cannot be asked is opened from the disk cache alone, and so is one that is a file of it.
 *
 * In a file: a head, for each object its ids, flags, and two texts, and the digest of all; its mtime is when the store
 * has said this last. It appears by a rename, as an
 * entry does (disk_folder.h), after the entries that it names.
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/io/disk/disk_folder.h"

#define DISK_MEMBERS_MAX 4097 /* the files of a source, and its index */

struct disk_member {
        unsigned char id[DISK_ID_SIZE];
        unsigned char alone[DISK_ID_SIZE]; /* of the source that consists of this object alone; zeroes: there is none */
        bool is_index;
        uint32_t folder_len; /* as object.folder_len */
        char *url, *path;    /* without a signature; for messages */
};

struct disk_source {
        struct list link;  /* in the cache's sources; else empty */
        struct list by_id; /* likewise */
        unsigned refs;     /* under the cache's mutex */
        unsigned char id[DISK_ID_SIZE];
        uint64_t noted_ns; /* since 1970: when its store has said this last; under the cache's mutex */
        size_t n;
        struct disk_member *members;
};

/* Of at most n members. NULL: no memory. */
struct disk_source *disk_source_new(const unsigned char id[DISK_ID_SIZE], size_t n);
struct disk_source *disk_source_free(struct disk_source *source); /* accepts NULL */
/* False: no memory. */
bool disk_source_add(struct disk_source *source, const struct disk_member *member);
bool disk_source_equal(const struct disk_source *a, const struct disk_source *b); /* but for the time */
/* Its member as a source. NULL: no memory. */
struct disk_source *disk_source_alone(const struct disk_member *member);

/* malloc'd; NULL: no memory. */
unsigned char *disk_source_encode(const struct disk_source *source, size_t *size);
/* 0; STREAMER_EFAILED: it is none; STREAMER_ENOMEM. */
int disk_source_decode(struct disk_source **source, const unsigned char *bytes, size_t n);
