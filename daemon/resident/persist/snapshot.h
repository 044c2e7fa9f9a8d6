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
 *   whole | change | change | ...      each: its size (u64), then
 *   counters, one row of 64 bytes for each lease | msgpack map: last generation, rows | foot (facts.h)
 *
 * A change has the same form as the whole, and what differs alone: a row replaces the one of its name and device, a
 * lease that of its number. A row that neither leads to a model nor is pinned nor a rank's says that the name is
 * removed, a lease without a model that it has ended. A change applies as a whole or not at all, since it has a
 * checksum; what is not whole, or has not a higher number of writes than what is before it, ends the sequence: it was
 * being written when the daemon was killed, or was left there by an older sequence. So the cost of a change depends on
 * the change alone; when the changes have outgrown the whole, a worker reads the sequence as the next run would, and
 * writes it as a whole.
 *
 * Snapshots of earlier forms, without changes (strmsnp2), and with models and names apart (snapshot_v1.h), are read,
 * too.
 */
#pragma once

#include "daemon/resident/lease.h"
#include "daemon/resident/persist/facts.h"
#include "daemon/resident/persist/name_row.h"

#define SNAPSHOT_MAGIC "strmsnp3"
#define SNAPSHOT_V2_MAGIC "strmsnp2"

/* The layout is part of the format. */
struct lease_record {
        uint64_t id;
        uint64_t model;   /* its id in the store; 0: the lease has ended */
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
/* A whole, or a change. STREAMER_ECORRUPT where it is truncated, malformed, or of another version; STREAMER_ENOMEM. */
int snapshot_unpack(struct snapshot *snapshot, const void *data, size_t size, struct error *error);
/* A whole with the changes behind it, each after its size: rows by the age of their names, leases by number. *used: how
 * much of `data` that is. The same errors, of the whole. */
int snapshot_read(struct snapshot *snapshot, const void *data, size_t size, size_t *used, struct error *error);

/* ---- writing ---- */

/* Appends a row. */
void name_row_pack(const struct name_row *row, struct items *rows);
/* Appends that the name was removed from the device. */
void name_row_pack_removed(const char *name, const char *device, struct items *rows);
/* Write a whole, or a change, to `out`, whose contents they replace: begin, each lease, end. STREAMER_ENOMEM. */
int snapshot_begin(msgpack_sbuffer *out, const uint64_t counters[SNAPSHOT_COUNTERS]);
int snapshot_add_lease(msgpack_sbuffer *out, const struct lease_record *lease);
int snapshot_end(msgpack_sbuffer *out, uint64_t last_number, const struct items *rows);
/* All of that, of one that was read. */
int snapshot_pack(msgpack_sbuffer *out, const struct snapshot *snapshot);
