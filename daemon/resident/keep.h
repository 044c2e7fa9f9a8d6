/* SPDX-License-Identifier: Apache-2.0
 *
 * What survives this process: models that are ready stay in the service manager's fd store, so that
 * the next run has them at once, and processes that hold leases keep them.
 *
 * One model in the store:
 *
 *   storing ---------------> stored ----------> leaving ------> (not there)
 *      \ names in the book,                        \ names, the record, the segments
 *       \ segments, the record
 *        \--> (not there): no room, or the manager does not answer
 *
 * The record is the commit: a model without one is dropped by the next run with its names, and so is
 * one that neither a name nor a lease in the book leads to. A generation whose memory is in the store keeps it
 * in the daemon's books too, until the manager has let go: `kept` holds it as a lease would.
 *
 * A name goes over to a newer generation with that one's record. Until then the next run finds the
 * older one under it, whole: both have the name in the book, and the newest of those that are whole
 * gets it.
 *
 * Everything here belongs to the loop; messages to the manager go out on a thread of their own, in
 * order. Where there is no store nothing is kept, and every call does nothing.
 */
#ifndef DAEMON_RESIDENT_KEEP_H
#define DAEMON_RESIDENT_KEEP_H

#include "daemon/base/inherit.h"
#include "daemon/resident/book.h"
#include "daemon/resident/lease.h"
#include "daemon/resident/record.h"

struct keep_rows;

enum kept_state { KEPT_STORING, KEPT_STORED, KEPT_LEAVING };

/* One model's place in the store. */
struct kept {
        struct list link; /* in keep->models */
        struct keep *keep;
        struct generation *generation; /* NULL: a set of an earlier run that goes */
        uint64_t id;
        enum kept_state state;
        bool let_go;         /* nobody holds the generation any more */
        bool awaits;         /* has a name's row that another's is to replace */
        uint64_t names_lost; /* by the generation, when rows were looked through last */
        struct list names;
        struct record record;
        unsigned n_fds;
        struct work work;
        struct error error;
};

struct keep {
        struct resident *resident;
        struct leases *leases;
        struct work_pool *thread;
        struct book *book;  /* NULL: nothing is kept */
        uint64_t max, used; /* descriptors in the store */
        struct list models; /* of struct kept */
        bool full_told;     /* that there is no room for more was logged */
        uint64_t jobs;      /* messages of processes that are on their way */
        bool frozen;        /* the daemon ends: the store stays as it is */
        bool processes_due; /* one holds a kept lease and is not stored yet */
        uint64_t claim_until_ns;
        const struct keep_rows *rows; /* of the book, while an earlier run's are taken back; else NULL */
        /* Of the last start. */
        struct {
                uint64_t models, dropped, leases;
        } taken;
};

/* `max` descriptors (0: keep nothing). Call before anything is resident. */
int keep_init(struct keep *keep, struct resident *resident, struct leases *leases, struct wake *wake, uint64_t max,
              struct error *error);
/* True if its thread ended, as work_pool_stop(). */
bool keep_stop(struct keep *keep, uint64_t deadline_ns);
void keep_deinit(struct keep *keep);

/* Before the loop runs: takes back what an earlier run has left, and drops what is not whole. Models
 * that come back are ready, with names and leases, and charged to whom they were (keep_taken.c). */
void keep_take_back(struct keep *keep, struct inherit *inherit);

/* The daemon ends: from now on the store is left as it is. */
void keep_freeze(struct keep *keep);

/* Some generation has changed. */
void keep_changed(struct keep *keep);
/* A few times a second: processes that still hold a kept lease go to the store. */
void keep_tick(struct keep *keep, uint64_t now);

/* A row for a lease that a run before this one gave out and whose process nobody knows; NULL if there
 * is none of this token. */
struct book_lease *keep_row(struct keep *keep, const unsigned char token[BOOK_TOKEN]);
struct generation *keep_generation(struct keep *keep, uint64_t id); /* NULL: it was not taken back */

/* A lease made from such a row: its process is one of this run. */
void keep_adopt(struct keep *keep, struct lease *lease);

/* ---- for lease.c and resident.c; `keep` may be NULL ---- */

void keep_lease(struct keep *keep, struct lease *lease);
void keep_lease_gone(struct keep *keep, struct lease *lease);
void keep_process_gone(struct keep *keep, struct process *process);
/* Nobody holds the generation: it leaves the store, and is settled again when it has. */
void kept_let_go(struct kept *kept);

/* ---- between keep.c, keep_lease.c and keep_taken.c ---- */

bool keep_is_on(const struct keep *keep);
void keep_full(struct keep *keep, const char *what); /* says so, once */
/* When its leases are taken by force: into their rows, and back. */
void kept_write_leases(struct kept *kept);
void kept_read_lease(struct lease *lease);
void keep_leases_tick(struct keep *keep, uint64_t now);
struct kept *kept_new(struct keep *keep, struct generation *generation, uint64_t id, unsigned n_fds);
int kept_add_name(struct kept *kept, struct book_name *row);
void kept_leave(struct kept *kept);

/* Names in the store, of up to FDSTORE_NAME_MAX bytes while ids have eight digits: the book's, and those of
 * a model's segments (sd-m7.0), its record (sd-m7.r) and a process (sd-p7). */
#define KEEP_PREFIX "sd-"
#define KEEP_BOOK KEEP_PREFIX "book"
#define KEEP_NAME_MAX 32
void keep_segment_name(char name[KEEP_NAME_MAX], uint64_t id, unsigned segment);
void keep_record_name(char name[KEEP_NAME_MAX], uint64_t id);
void keep_process_name(char name[KEEP_NAME_MAX], uint64_t id);

#endif
