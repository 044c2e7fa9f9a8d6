/* SPDX-License-Identifier: Apache-2.0
 *
 * The snapshot: all that a later run needs beside the memory and the commit records of models.
 *
 *   models   which names led to which sources, on which devices, with which settings and for which users: to load the
 *            pinned ones again
 *   names    which names lead to which models in the fd store
 *   leases   which processes hold leases of these
 *
 * One form, in two places (snapshot_io.h): with the names and leases in memory that the service manager keeps, exact to
 * the last reply; and without leases in the state file, which survives a reboot, as memory does not.
 *
 *   counters, one row of 64 bytes for each lease | msgpack map: models, names | foot (facts.h)
 *
 * Leases are not msgpack, for they change at each attach: the map is copied as it was packed, in two parts.
 */
#pragma once

#include "daemon/resident/lease.h"
#include "daemon/resident/persist/facts.h"

#define SNAPSHOT_MAGIC "strmsnp1"
#define MODEL_RECORD_DEVICES 64

struct model_device {
        char *uuid;
        bool pinned;
};

struct model_record {
        char *name;
        char *source;
        uint64_t number;
        bool verified;
        struct caller caller;
        char *pattern;
        struct model_settings settings;
        uint32_t owner; /* of the name */
        bool ranks;
        struct model_device *devices; /* by rank where it has ranks */
        size_t n_devices;
};

/* With texts of its own. STREAMER_ENOMEM. */
int model_record_copy(struct model_record *to, const struct model_record *from);
/* Once for each device. */
int model_record_add_device(struct model_record *record, const char *uuid, bool pinned);
bool model_record_has_device(const struct model_record *record, const char *uuid);
/* What is to be loaded, where, and with which settings. */
bool model_record_equal(const struct model_record *a, const struct model_record *b);
void model_record_deinit(struct model_record *record); /* of one that owns its texts; accepts a zeroed one */

/* A name of a model in the fd store, with the settings of that model. */
struct name_record {
        uint64_t model; /* its id in the store */
        char *text;
        struct model_settings settings;
        uint32_t owner;
        uint64_t charged; /* uid + 1 of the user who is charged for the name; 0: no user */
};

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

struct snapshot {
        uint64_t counters[SNAPSHOT_COUNTERS];
        uint64_t last_number; /* of a generation, over all runs */
        struct model_record *models;
        size_t n;
        struct name_record *names;
        size_t n_names;
        struct lease_record *leases;
        size_t n_leases;
};

/* The models: of what is resident, in the order of names; devices in that in which they got the name: ranks by number.
 * To be deinited in any case. STREAMER_ENOMEM. */
int snapshot_of(struct snapshot *snapshot, const struct resident *resident);
/* NULL if there is none. The models must be sorted by name, as snapshot_of() and snapshot_unpack() leave them. */
struct model_record *snapshot_find(const struct snapshot *snapshot, const char *name);
/* A copy of `from`; NULL on ENOMEM. */
struct model_record *snapshot_add(struct snapshot *snapshot, const struct model_record *from);
/* The source and settings of its generation, without devices. NULL on ENOMEM. */
struct model_record *snapshot_add_name(struct snapshot *snapshot, const struct model_name *name);
void snapshot_deinit(struct snapshot *snapshot); /* accepts a zeroed one */

/* A part of the map: the models, or the last number and the names. In place of what `out` has. STREAMER_ENOMEM. */
enum snapshot_part { SNAPSHOT_MODELS, SNAPSHOT_NAMES };
int snapshot_pack(const struct snapshot *snapshot, enum snapshot_part part, msgpack_sbuffer *out);
/* Write a snapshot to `out`, whose contents they replace: begin, each lease, end. STREAMER_ENOMEM. */
int snapshot_begin(msgpack_sbuffer *out, const uint64_t counters[SNAPSHOT_COUNTERS]);
int snapshot_add_lease(msgpack_sbuffer *out, const struct lease_record *lease);
int snapshot_end(msgpack_sbuffer *out, const msgpack_sbuffer *models, const msgpack_sbuffer *names);
/* STREAMER_ECORRUPT where they are truncated, malformed, or of another version. */
int snapshot_unpack(struct snapshot *snapshot, const void *data, size_t size, struct error *error);
