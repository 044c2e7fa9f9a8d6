/* SPDX-License-Identifier: Apache-2.0
 *
 * Persistence: models that are ready stay in the service manager's fd store, so that the next run serves them
 * at once, and processes that hold leases keep them.
 *
 * One model in the store:
 *
 *   storing ---------------> stored ----------> removing -----> (removed)
 *      \ names in the journal,                     \ names, the commit record, the segments
 *       \ segments, the commit record
 *        \--> (removed): no capacity, or the manager does not answer
 *
 * The commit record is stored last: the next run drops a model without one, and one to which neither a name nor a lease
 * in the journal leads. While the store holds a generation's memory, it counts in the device's budget.
 *
 * A name switches to a newer generation once that one's commit record is stored. Until then the next run finds
 * the older one under it: both have the name in the journal, and the newest complete one gets it.
 *
 * Owned by the loop; messages to the manager are sent in order on a thread of their own. Without a store nothing
 * is persisted, and every call does nothing.
 */
#pragma once

#include "daemon/base/sys/systemd.h"
#include "daemon/resident/lease.h"
#include "daemon/resident/persist/commit_record.h"
#include "daemon/resident/persist/journal.h"

#include <inttypes.h>

enum persisted_state { PERSIST_STORING, PERSIST_STORED, PERSIST_REMOVING };

/* One model in the store. */
struct persisted {
        struct list link; /* in persist->models */
        struct persist *persist;
        struct generation *generation; /* NULL: an earlier run's, being removed */
        uint64_t id;
        enum persisted_state state;
        uint64_t names_lost;     /* generation->names_lost when it had its rows alone */
        size_t n_names;          /* its rows in the journal */
        msgpack_sbuffer details; /* of its commit record, while it is stored */
        unsigned n_fds;
        struct work work;
        struct error error;
};

struct persist {
        struct resident *resident;
        struct leases *leases;
        struct work_pool *thread;
        struct journal *journal; /* NULL: nothing is persisted */
        uint64_t max, used;      /* descriptors in the store */
        struct list models;      /* of struct persisted */
        bool full_logged;        /* the lack of capacity was logged */
        uint64_t jobs;           /* messages about processes in flight */
        bool frozen;             /* the daemon ends: the store is not changed any more */
        bool processes_due;      /* a process with a lease in the journal is not stored yet */
        uint64_t claim_until_ns; /* leases of an earlier run may be reclaimed; 0: not any more */
};

/* `max` descriptors (0: persist nothing). Call before anything is resident. */
int persist_init(struct persist *persist, struct resident *resident, struct leases *leases, struct wake *wake,
                 uint64_t max, struct error *error);
/* True if its thread ended, as work_pool_stop(). */
bool persist_stop(struct persist *persist, uint64_t deadline_ns);
void persist_deinit(struct persist *persist);

/* Before the loop runs: restores what an earlier run has stored and drops what is incomplete. Restored models are
 * ready, with names and leases, and charged as before (recover.c). */
void persist_recover(struct persist *persist, struct listen_fds *listen_fds);

/* The daemon ends: the store is not changed any more. */
void persist_freeze(struct persist *persist);

/* A generation has changed. */
void persist_changed(struct persist *persist);
/* A few times a second: stores processes that hold leases in the journal. */
void persist_tick(struct persist *persist, uint64_t now);

/* The row of a lease of an earlier run whose process was not restored; NULL if none has this token. */
struct journal_lease *persist_lease_row(struct persist *persist, const unsigned char token[LEASE_TOKEN]);
struct generation *persist_generation(struct persist *persist, uint64_t id); /* NULL: it was not restored */

/* A lease made from such a row, of a process of this run; NULL: no memory. */
struct lease *persist_lease_restore(struct persist *persist, struct process *process, struct generation *generation,
                                    struct journal_lease *row);

/* ---- for recover.c ---- */

struct persisted *persisted_new(struct persist *persist, struct generation *generation, uint64_t id, unsigned n_fds);
void persisted_remove(struct persisted *persisted);
/* Stores the pidfd of a process, or (-1) removes it. 0 or a negative errno. */
int persist_send_process(uint64_t id, int fd);

/* Names in the store, of up to FDSTORE_NAME_MAX bytes while ids have eight digits: of the journal, of a model's
 * segments (sd-m7.0) and commit record (sd-m7.r), and of a process (sd-p7). */
#define PERSIST_PREFIX "sd-"
#define PERSIST_JOURNAL PERSIST_PREFIX "journal"
