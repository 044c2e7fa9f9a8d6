/* SPDX-License-Identifier: Apache-2.0
 *
 * The journal: what must survive a kill -9 and changes too often for a file, namely which name leads to which
 * stored model, and which processes hold leases. A memfd that the daemon writes and the service manager keeps open:
 * the next run finds what was written, in the order in which it was written.
 *
 * Rows have a fixed size, one for each name and each lease. A row is filled first and then marked by one store, so it
 * is complete or absent. A name switches in one step: the newer model's row is marked before the older one's is
 * cleared, and a reader takes the newer of two.
 *
 * The state file (state_file.h) is another form for another end: it survives a reboot, which neither memory nor leases
 * do, so it has names and sources alone and may be a moment old. The journal is exact to the last attach. As a snapshot
 * it would copy up to 16 MiB of rows for each attach; so it is changed in place, one row at a time.
 */
#pragma once

#include "daemon/resident/lease.h"

#define JOURNAL_NAMES 65536u
#define JOURNAL_LEASES 262144u

struct journal_name {
        uint64_t model; /* its id in the store; 0: a free row; atomic */
        struct model_settings settings;
        uint32_t owner;
        uint32_t charged; /* uid + 1 of the user who is charged for the name; 0: none, or unknown */
        char text[PROTO_NAME_MAX + 8];
};

struct journal_lease {
        uint64_t id;      /* 0: a free row; atomic */
        uint64_t model;   /* its id in the store */
        uint64_t process; /* 0: its pidfd is not in the store yet */
        uint64_t since_ns;
        uint32_t pid, uid;
        unsigned char token[LEASE_TOKEN];
        uint64_t revoked_ns; /* when its lease is or was revoked (CLOCK_MONOTONIC); 0: never; atomic */
};

/* Counters that are never reset, over all runs. */
enum journal_counter { JOURNAL_MODEL, JOURNAL_PROCESS, JOURNAL_LEASE, JOURNAL_GENERATION, JOURNAL_COUNTERS };

/* Names or leases. A row begins with its mark: 0 where it is free. */
struct journal_table {
        unsigned char *rows;
        size_t size;      /* of a row */
        uint64_t n, *end; /* *end: one beyond the last row that was ever marked */
        uint64_t free;    /* no row before it is free */
};

struct journal {
        int fd;
        struct journal_file *file;
        uint64_t *counters;                 /* the last number of each */
        struct journal_table names, leases; /* of struct journal_name, journal_lease */
};

struct journal *journal_new(struct error *error); /* NULL on failure */
/* One of an earlier run. Takes over fd; NULL where it is invalid or of another version. */
struct journal *journal_open_consume_fd(int fd, struct error *error);
struct journal *journal_free(struct journal *journal);

void journal_raise(struct journal *journal, enum journal_counter counter, uint64_t at_least);

/* A free row, filled and marked; NULL where all are in use. */
void *journal_add(struct journal_table *table, const void *row);
void journal_drop(struct journal_table *table, void *row);
/* Rows that are marked: the next after `row`, NULL for the first; NULL at the end. */
void *journal_each(const struct journal_table *table, const void *row);
