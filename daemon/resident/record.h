/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit record of a kept model: its manifest, and behind it all that is needed to take the model
 * back (number, source, identity, device, digest, segments), in one memfd that is sealed against any
 * change. Whoever finds it in the store, whole, knows that the model was ready and its segments had
 * been stored before.
 *
 *   manifest | details, one msgpack map | foot: magic, version, sizes, XXH3-128 of all before it
 *
 * The manifest comes first, so that the same descriptor is what clients map.
 */
#ifndef DAEMON_RESIDENT_RECORD_H
#define DAEMON_RESIDENT_RECORD_H

#include "daemon/resident/resident.h"

struct record {
        uint64_t id; /* among the kept models */
        uint64_t number;
        char *name, *source; /* name: one that it had; names are the book's matter */
        char device[64];     /* its UUID */
        struct source_identity identity;
        bool has_identity, verified;
        unsigned char digest[DIGEST_SIZE];
        struct origin origin;
        uint64_t data_bytes, n_tensors, load_ns, charged;
        unsigned n_segments;
        uint64_t sizes[GENERATION_SEGMENTS];
        enum page_kind pages[GENERATION_SEGMENTS];
};

/* Of a generation that is ready, on the loop. STREAMER_ENOMEM. */
int record_of(struct record *record, const struct generation *generation, uint64_t id);
void record_deinit(struct record *record); /* accepts a zeroed one */

/* On a worker: *fd is the sealed memfd, open for reading. */
int record_write(const struct record *record, const struct table *manifest, int *fd, struct error *error);

/* Takes over fd. STREAMER_ECORRUPT where anything does not hold together: seals, sizes, checksum,
 * version, the manifest itself. On success *out is the table of the generation. */
int record_read_consume_fd(struct record *record, int fd, struct table *out, struct error *error);

#endif
