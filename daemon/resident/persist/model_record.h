/* SPDX-License-Identifier: Apache-2.0
 *
 * What outlives a run of the daemon, of one model. One table (model_record.c) describes each fact: its key, type and
 * limits, where it lies in the record and in a generation, and which stores carry it. Writing, reading, validating,
 * copying and freeing follow from the table.
 *
 *   STORE_COMMIT   a commit record: what it takes to restore a generation with its memory (commit_record.h)
 *   STORE_STATE    the state file: what it takes to load a model again (state_file.h)
 *
 * Commit records and the state file end with a foot, which says of which version they are and that they are whole:
 *
 *   manifest, of a commit record | one msgpack map | foot: magic, version, sizes, XXH3-128 of everything before it
 */
#ifndef DAEMON_RESIDENT_PERSIST_MODEL_RECORD_H
#define DAEMON_RESIDENT_PERSIST_MODEL_RECORD_H

#include "daemon/resident/model.h"
#include "proto/codec.h"

#define MODEL_RECORD_DEVICES 64

enum store { STORE_COMMIT = 1, STORE_STATE = 2 };

struct model_segment {
        uint64_t size, small_bytes; /* small_bytes: without the huge pages that `pages` promises */
        enum page_kind pages;
};

struct model_device {
        char *uuid;
        bool pinned;
};

struct model_record {
        char *name; /* of a commit record: a provisional one; the journal has its names */
        char *source;
        uint64_t number;
        bool verified;
        struct caller caller;
        char *pattern;
        struct model_settings settings;
        /* Of a commit record. */
        uint64_t id;  /* of the model in the store */
        char *device; /* its UUID */
        struct source_identity identity;
        bool has_identity;
        unsigned char digest[DIGEST_SIZE];
        uint64_t data_bytes, n_tensors, load_ns, charged;
        struct model_segment *segments;
        size_t n_segments;
        /* Of the state file. */
        uint32_t owner; /* of the name */
        bool ranks;
        struct model_device *devices; /* by rank where it has ranks */
        size_t n_devices;
};

/* Of a generation, under its oldest name; without what one store alone has of its memory. Borrows its texts. */
struct model_record model_record_of(const struct generation *generation);
/* Into a generation: what both have, except settings. */
void model_record_move(struct model_record *record, struct generation *generation);
/* With texts of its own, without segments and devices. STREAMER_ENOMEM. */
int model_record_copy(struct model_record *to, const struct model_record *from);
void model_record_deinit(struct model_record *record); /* of one that owns its texts; accepts a zeroed one */
bool model_record_equal(const struct model_record *a, const struct model_record *b); /* without segments */

/* Appends what `store` carries, as one msgpack map; and reads it: the key of what is missing, malformed or out of
 * range, or NULL. */
void model_record_write(struct writer *w, const struct model_record *record, enum store store);
const char *model_record_read(struct model_record *record, const msgpack_object *map, enum store store);

#define RECORD_MAGIC 8

/* Appends a foot to the map in `out`, which comes after `first` (a manifest) in the file. STREAMER_ENOMEM. */
int record_seal(msgpack_sbuffer *out, const void *first, size_t first_size, const char magic[RECORD_MAGIC]);
/* A file's map, and the size of what is before it. NULL, or what is wrong with the file. */
const char *record_open(const void *file, size_t size, const char magic[RECORD_MAGIC], size_t *first_size,
                        struct message *map);

#endif
