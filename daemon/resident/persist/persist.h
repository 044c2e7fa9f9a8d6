/* SPDX-License-Identifier: Apache-2.0
 *
 * Persistence: models that are ready stay in the service manager's fd store, so that the next run serves them
 * at once, and processes that hold leases keep them; the next run loads what was pinned and is not in the store.
 *
 * A snapshot (snapshot.h) says what leads to what. It follows what is resident and desired: a change marks rows of
 * names and leases as due (journal.h), and what differs is written before anything is sent to a client, as one change
 * with a checksum behind the snapshot that was written before. So its cost does not depend on how many models, names
 * and leases there are. Of a model in the store a kill -9 undoes no name, setting, pin or lease that a client has seen;
 * a model that has just become ready is stored a moment later. The state file, with the pins, follows a few times a
 * second.
 *
 * A row is made from what is resident and desired when it is written; nothing that a change says is trusted but which
 * row it is. A run, and what follows a write that has failed, begins with a whole snapshot.
 *
 * What is due is one set (enum persist_due). Packing changes nothing: what begins to be stored, and the numbers of
 * processes, are decided before.
 *
 * One model in the store (enum stored_state):
 *
 *   begun ------------------> whole ----------> removing -----> ended
 *      \ segments, the commit record              \ the commit record, the segments
 *       \--> removing: the manager does not answer
 *
 * A model for which the store has no capacity waits for it. One that is begun or whole is left to the next run as the
 * daemon ends.
 *
 * The commit record is stored last: the next run drops a model without one, and one to which neither a name nor a lease
 * of the snapshot leads. While the store holds a generation's memory, it counts in the device's budget.
 *
 * A name switches to a newer generation once that one's commit record is stored. Until then the older one stays in the
 * store as the name's fallback, and the row of the name leads to both: the next run takes the newest complete one.
 *
 * Owned by the loop; messages to the manager are sent in order on a thread of their own. A manager that does not read
 * them, or reads them slowly, delays the freeing of memory for some seconds at most, with what was queued before, and
 * little after that, until it has read all in time again. Without a store
 * there is the state file alone, and without a folder for that nothing is persisted.
 */
#pragma once

#include "daemon/base/sys/systemd.h"
#include "daemon/resident/lease.h"
#include "daemon/resident/persist/commit_record.h"
#include "daemon/resident/persist/journal.h"
#include "daemon/resident/persist/snapshot_io.h"

#include <inttypes.h>

/* One model in the store, in the state of its generation (enum stored_state). */
struct persisted {
        struct tree_node by_id; /* in persist->models */
        struct persist *persist;
        struct generation *generation; /* NULL: an earlier run's, which is being removed */
        uint64_t id;
        msgpack_sbuffer details; /* of its commit record, while it is stored */
        unsigned n_fds;
        uint64_t stored_ns, removed_ns; /* when that was first wanted, in this run; 0: not yet */
        struct work work;
        struct error error;
};

struct desired; /* of serve/desired: models that are not resident, and to be loaded */

/* What differs from what was written or sent last. */
enum persist_due {
        DUE_CHANGES = 1, /* of generations, rows or leases: they are written before anything is sent */
        DUE_WHOLE = 2,   /* the next is a whole snapshot */
        DUE_NAMES = 4,   /* there was no memory to mark a name: all are */
        DUE_RETRY = 8,   /* what could not be marked or written is due again at the next tick */
        DUE_FILE = 16    /* rows of pinned names: by the tick, unless it is being written */
};

/* The state file, which a worker writes. */
struct state_file {
        const char *folder; /* NULL: none */
        bool unread;        /* it exists and could not be read: it is not overwritten */
        struct work_pool *pool;
        struct items rows; /* that were not written yet */
        bool begun;        /* with those that were, they are all; else what is written next has to be a whole */
        bool fresh;        /* they are all by themselves */
        /* While it is being written. */
        bool writing, whole;
        msgpack_sbuffer bytes;
        struct snapshot_extent extent; /* of the file; the worker's */
        bool lost;                     /* the file was removed or changed */
        struct work work;
        struct error error;

        struct error failure; /* of the last write, and logged; else zero */
};

/* A worker writes the snapshot of the memory as a whole. */
struct compaction {
        struct work work;
        bool runs;
        struct snapshot_memory from;
        uint64_t whole; /* bytes */
        struct error error;
};

/* Desired models. Marks each name that is to be loaded: persist_mark(). */
typedef void (*persist_mark_desired)(const struct desired *desired);
/* The row of a name on a device that is to be loaded there; its texts are borrowed. False: there is none. */
typedef bool (*persist_desired)(const struct desired *desired, const char *name, const char *device,
                                struct name_row *row);

struct persist {
        struct resident *resident;
        struct leases *leases;
        persist_mark_desired mark_desired;
        persist_desired desired_row;
        const struct desired *desired;
        bool tracks;                   /* there is a place to write to, or there may be one */
        struct snapshot_memory memory; /* fd -1: there is no store */
        struct compaction compaction;
        uint64_t counters[SNAPSHOT_COUNTERS];
        uint64_t written[SNAPSHOT_COUNTERS + 1]; /* as written last, and the last number of a generation */
        unsigned due;                            /* of enum persist_due */
        struct journal journal;
        struct list changed;    /* of struct generation: what leads to it may have to be written */
        struct list waiting;    /* of those that serve: for capacity in the store, or memory */
        struct list due_leases; /* of struct lease */
        uint64_t *ended;        /* numbers of leases that have a row */
        size_t n_ended;
        msgpack_sbuffer bytes; /* of what is written to the memory */
        bool failure_logged;   /* it could not be written */
        struct state_file file;
        struct work_pool *thread;
        uint64_t end_ns;           /* atomic: no message is waited for longer; UINT64_MAX: the daemon runs */
        bool hangs;                /* of the thread: the manager has not read the last message in time */
        uint64_t max, used;        /* descriptors in the store */
        struct tree models;        /* of struct persisted, by id */
        bool full_logged;          /* the lack of capacity was logged */
        struct batch *batch;       /* messages about processes in flight; NULL: none */
        struct list due_processes; /* of struct process: with a lease in the snapshot, and not stored */
        uint64_t *exited;          /* ids of processes that are to be removed from the store */
        size_t n_exited;
        bool frozen;                     /* nothing is persisted yet, or any more */
        uint64_t claim_until_ns;         /* leases of an earlier run may be reclaimed; 0: not any more */
        struct lease_record *unverified; /* of processes that are not known; each holds its model */
        size_t n_unverified;
};

/* `max` descriptors (0: no store). Call before anything is resident; it is frozen until persist_start(). */
int persist_init(struct persist *persist, struct resident *resident, struct leases *leases, struct wake *wake,
                 uint64_t max, struct error *error);
/* Before the loop runs: restores what an earlier run has stored and drops what is incomplete. Restored models are
 * ready, with names and leases, and charged as before (recover.c). `newest`: the snapshot of the store, or the state
 * file of `folder` (NULL: none); to be deinited in any case. May block. */
void persist_recover(struct persist *persist, struct listen_fds *listen_fds, const char *folder,
                     struct snapshot *newest);
/* From now on what is resident is persisted. All of these are borrowed. */
void persist_start(struct persist *persist, struct work_pool *pool, const char *folder,
                   persist_mark_desired mark_desired, persist_desired desired_row, const struct desired *desired);
/* The daemon ends: a last snapshot, and the store is not changed any more. */
void persist_freeze(struct persist *persist);
/* True if its thread ended, as work_pool_stop(). */
bool persist_stop(struct persist *persist, uint64_t deadline_ns);
void persist_deinit(struct persist *persist);

/* What a name leads to on a device, of this UUID, may have changed. Only marks. */
void persist_mark(struct persist *persist, const char *name, const char *device);
/* A worker writes; the daemon does not end before that. */
bool persist_is_writing(const struct persist *persist);
/* Before anything is sent: writes the snapshot if it is due. */
void persist_sync(struct persist *persist);
/* A few times a second: also writes the state file, and stores processes that hold leases. Returns when it is to be
 * called again; UINT64_MAX: not before something changes. */
uint64_t persist_tick(struct persist *persist, uint64_t now);

/* A lease of an earlier run whose process is not known; NULL if none has this token. */
const struct lease_record *persist_unverified(const struct persist *persist, const unsigned char token[LEASE_TOKEN]);
struct generation *persist_generation(struct persist *persist, uint64_t id); /* NULL: it was not restored */

/* A lease made from such a record, of a process of this run; NULL: no memory. */
struct lease *persist_lease_restore(struct persist *persist, struct process *process, struct generation *generation,
                                    const struct lease_record *record);

/* ---- for recover.c ---- */

struct persisted *persisted_new(struct persist *persist, struct generation *generation, uint64_t id, unsigned n_fds);
/* Its commit record is in the store. */
void persisted_stored(struct persisted *persisted);
void persisted_remove(struct persisted *persisted);
/* Stores the pidfd of a process, or (-1) removes it. 0 or a negative errno. */
int persist_send_process(uint64_t id, int fd, const struct fdstore_limit *limit);
/* Of what is sent before the loop runs, all together. */
struct fdstore_limit persist_limit_start(struct persist *persist);

/* Names in the store, of up to FDSTORE_NAME_MAX bytes while ids have eight digits: of the snapshots, of a model's
 * segments (sd-m7.0) and commit record (sd-m7.r), and of a process (sd-p7). */
#define PERSIST_PREFIX "sd-"
#define PERSIST_SNAPSHOT PERSIST_PREFIX "snapshot"
