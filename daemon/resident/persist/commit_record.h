/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit record of a stored model: its manifest, followed by what it takes to restore the model (facts.h), in one
 * memfd that is sealed against any change. A valid record in the store means that the model was ready and that its
 * segments were stored before.
 *
 * The record never reaches a client: its facts name the user, the groups and the source. A restored generation has a
 * copy of the manifest. The source is without the query of a URL, which may be a signature.
 */
#pragma once

#include "daemon/resident/persist/facts.h"

/* On the loop, of a generation that is ready: the record without its manifest. STREAMER_ENOMEM. */
int commit_record_pack(msgpack_sbuffer *details, const struct generation *generation, uint64_t id);

/* On a worker: completes `details`. *fd is the sealed memfd, open for reading. */
int commit_record_write(msgpack_sbuffer *details, const struct table *manifest, int *fd, struct error *error);

/* What a generation is made from; the record has the rest of it. */
struct commit_record {
        char *name; /* a provisional one: the snapshot has its names */
        char *source;
        uint64_t id;  /* of the model in the store */
        char *device; /* its UUID */
        uint64_t charged;
        struct caller caller;
        struct {
                uint64_t size, small_bytes; /* small_bytes: without the huge pages that `pages` promises */
                enum page_kind pages;
        } segments[GENERATION_SEGMENTS];
        size_t n_segments;
        struct message map;
        struct table file; /* all of it; the manifest comes first */
        uint64_t manifest_size;
        struct table manifest; /* a copy of it, until a generation has it */
};

/* On any thread. Takes over fd, and copies the manifest, which takes nearly all of a restoration's time.
 * STREAMER_ECORRUPT where the seals, sizes, checksum, version or the manifest are wrong; STREAMER_ENOMEM. To be
 * deinited in any case. */
int commit_record_open_consume_fd(struct commit_record *record, int fd, struct error *error);
/* Once, of an open one, into a new generation, which gets the copy of the manifest. STREAMER_ECORRUPT where a fact is
 * wrong; STREAMER_ENOMEM. */
int commit_record_restore(struct commit_record *record, struct generation *generation, struct error *error);
void commit_record_deinit(struct commit_record *record); /* accepts a zeroed one whose descriptors are -1 */
