/* SPDX-License-Identifier: Apache-2.0
 *
 * The snapshot: all that a later run needs beside the memory and the commit records of models.
 *
 *   rows     one for each name on each device: which models in the fd store it leads to, and what it takes to load what
 *            it leads to again
 *   leases   which processes hold leases of models in the fd store
 *
 * A name that is in no row is not resident and not desired, whatever else was stored. A row is a fact of its name:
 * names of one generation may have different sources, owners and callers.
 *
 * One form, in two places (snapshot_io.h): with leases in memory that the service manager keeps, exact to the last
 * reply; and the rows of pinned names in the state file, which survives a reboot, as memory does not.
 *
 *   counters, one row of 64 bytes for each lease | msgpack map: last generation, rows | foot (facts.h)
 *
 * Rows are packed one by one and copied as they were packed. So a change of one name could be appended behind the foot
 * as that row with a checksum of its own, where the last row of a name and device counts, and the whole be written to
 * the other buffer when the appended rows outgrow it; today each change packs all rows.
 *
 * Snapshots of the earlier form, with models and names apart, are read, too (snapshot_v1.h).
 */
#pragma once

#include "daemon/resident/lease.h"
#include "daemon/resident/persist/facts.h"
#include "daemon/resident/persist/name_row.h"

#define SNAPSHOT_MAGIC "strmsnp2"

/* The layout is part of the format. */
struct lease_record {
        uint64_t id;
        uint64_t model;   /* its id in the store */
        uint64_t process; /* its number in the store, where its pidfd may be missing */
        uint64_t since_ns;
        uint64_t revoked_ns; /* when the lease is or was revoked (CLOCK_MONOTONIC); 1: already; 0: never */
        uint32_t pid, uid;
        unsigned char token[LEASE_TOKEN];
};

/* How many there have been over all runs. The snapshot of more writes is the newer one. */
enum snapshot_counter {
        SNAPSHOT_WRITES,
        SNAPSHOT_LEASE_IDS,
        SNAPSHOT_MODEL_IDS,
        SNAPSHOT_PROCESS_IDS,
        SNAPSHOT_COUNTERS,
};

/* As it is read. */
struct snapshot {
        uint64_t counters[SNAPSHOT_COUNTERS];
        uint64_t last_number; /* of a generation, over all runs */
        struct name_row *rows;
        size_t n_rows;
        struct lease_record *leases;
        size_t n_leases;
};

void snapshot_deinit(struct snapshot *snapshot); /* accepts a zeroed one */
/* STREAMER_ECORRUPT where they are truncated, malformed, or of another version; STREAMER_ENOMEM. */
int snapshot_unpack(struct snapshot *snapshot, const void *data, size_t size, struct error *error);

/* ---- writing ---- */

/* Rows as they are written. */
struct packed_rows {
        size_t n;
        msgpack_sbuffer bytes;
};

/* Appends a row. */
void name_row_pack(const struct name_row *row, struct items *rows);
/* Takes them over. */
static inline struct packed_rows packed_rows(const struct items *rows)
{
        return (struct packed_rows){rows->n, rows->w.buf};
}
bool packed_rows_equal(const struct packed_rows *a, const struct packed_rows *b);
/* Write a snapshot to `out`, whose contents they replace: begin, each lease, end. STREAMER_ENOMEM. */
int snapshot_begin(msgpack_sbuffer *out, const uint64_t counters[SNAPSHOT_COUNTERS]);
int snapshot_add_lease(msgpack_sbuffer *out, const struct lease_record *lease);
int snapshot_end(msgpack_sbuffer *out, uint64_t last_number, const struct packed_rows *rows);
