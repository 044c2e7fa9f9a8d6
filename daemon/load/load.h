/* SPDX-License-Identifier: Apache-2.0
 *
 * One load: from a source to generations that serve, one on each of its devices.
 *
 *   opening > planning > queued > allocating > reading > checking > ended (ready, failed, cancelled)
 *      \-> ended: resident already, or joined to the load that is under way
 *
 * All transitions happen on the loop; the steps run elsewhere and come back by wake:
 *
 *   opening     lane of the file system   open the source's files
 *   planning    the same                  read and parse headers, plan, make the books
 *   queued      nowhere                   until each device has room for it (admit.c)
 *   allocating  the devices' threads      segments
 *   reading     reader threads            blocks; beside it workers build the manifests, and with
 *                                         SHA-256 others check each file that is whole
 *   checking    lane of the file system   is the source what it was? the model digest
 *
 * Targets and parts. A target is a device and its generation. A part is what is planned and read
 * once: replicas on devices of one layout are targets of one part, whose blocks are copied to each;
 * the host, where blocks are read in place, is a part of its own; and so is each rank of a model that
 * is cut by rank. Replicas fail each on its own: one that fails gives its memory back and the others
 * go on; the load fails with the last. Ranks succeed or fail together.
 *
 * Replicas that wait for room do so each on its own: while one is blocked the others are read and serve,
 * in a round of their own; it follows in a later one, without whoever asked having to do anything.
 *
 * Ended is not gone. A load ends, for those who watch it, the moment its outcome is known; what is
 * still in flight (a read that hangs, a step in a worker) keeps the object, the generations' pins and
 * so their memory until it comes home; and so do those who follow it, a crowd that is told in pieces.
 *
 * A load belongs to nobody: it survives the client that asked for it, and only cancel ends it.
 */
#ifndef DAEMON_LOAD_LOAD_H
#define DAEMON_LOAD_LOAD_H

#include "daemon/io/reader.h"
#include "daemon/load/publish.h"
#include "daemon/load/sha.h"
#include "daemon/resident/resident.h"
#include "daemon/resident/room.h"

enum load_state {
        LOAD_OPENING,
        LOAD_PLANNING,
        LOAD_QUEUED,
        LOAD_ALLOCATING,
        LOAD_READING,
        LOAD_CHECKING,
        LOAD_READY,
        LOAD_FAILED,
        LOAD_CANCELLED,
};
/* The words of the protocol: "resolving", "queued", "loading", "ready", "failed", "cancelled". */
const char *load_state_name(enum load_state state);
bool load_ended(enum load_state state);

#define LOAD_DEVICES READ_TARGETS

struct load_request {
        const char *source;
        const char *name;           /* NULL: from the source */
        const char *const *devices; /* none: the only one there is */
        size_t n_devices;
        const char *pattern; /* of the files' names, rank r to the r-th device; NULL: replicas */
        bool sha256, dry_run;
        bool wait, no_evict, pin;                 /* for room; evicting nobody; never to be evicted */
        uint64_t keep_alive_ns, drain_timeout_ns; /* 0: the default */
        unsigned priority;                        /* 0: the default */
        bool admin;                               /* decides how models of others are kept, too */
        bool probe;                               /* the daemon's own model, of this seed; has no source */
        uint64_t probe_seed;
        const struct caller *caller;
        const uid_t *owner;         /* of the name, where nobody has it yet; NULL: the caller */
        struct source_roots *roots; /* NULL: the loads' own */
        struct users *users;        /* charged for it; NULL: nobody is */
        const struct user_limits *limits;
};

/* What a dry run answers for a device. */
struct load_estimate {
        uint64_t files, tensors, bytes, needed, unused, budget, segments, blocks, copied;
        bool fits, resident;
        bool streamed; /* a server of it knows no ranges */
};

struct load;

/* Somebody waits for the end; embedded, removed with load_unwatch() or, where it is told at once, by the end. */
struct load_watch {
        struct list link;
        struct load *load; /* changes where a load joins another */
        /* NULL: it follows. */
        void (*ended)(struct load_watch *watch, struct load *load);
};

struct load_progress {
        enum load_state state;
        uint64_t generation, bytes, total, tensors, tensors_total, elapsed_ns;
        bool stalled, streamed; /* streamed: by a server that knows no ranges */
};

struct load_part;

struct sha_step {
        struct work work;
        struct errand item;
        struct load_part *part;
        size_t file, target; /* the target whose bytes are looked at; after the last the file is released */
        struct error error;
};

struct load_target {
        struct load *load;
        struct load_part *part;
        struct device *device;
        struct generation *generation; /* pinned; NULL for a dry run, and once its memory was given up */
        struct host_copy *kept;        /* in the host cache, used: it is copied back; NULL: it is read */
        bool shared;                   /* the generation is another load's: resident already */
        bool failed;                   /* on its own, before the load ended */
        bool granted, late;            /* its room is charged; it sits this round out (round.c) */
        struct error error;            /* why */
        struct load_estimate estimate;
        struct room_request room;
        uint64_t ceiling;     /* of the device, when it was out of memory */
        bool short_of_memory; /* it was, and may be asked again */
        struct read_target copy;
        struct table manifest, arrival; /* on their way to the generation */
        struct work step;               /* allocating */
        struct error step_error;
};

struct load_part {
        struct load *load;
        struct load_target *targets[LOAD_DEVICES];
        struct read_target *copies[LOAD_DEVICES]; /* of the targets */
        size_t n_targets;

        struct resolved resolved; /* a view of the load's source */
        struct source_identity identity;
        struct publish publish;
        struct read_job job;
        struct sha *sha;
        struct sha_step *sha_steps;
        size_t files_checked;
        unsigned char digest[DIGEST_SIZE];
        bool in_pieces, cut;  /* its devices have memory, but not in one piece; smaller segments were planned */
        uint64_t max_segment; /* of those; 0: the devices' own */
        bool has_books;       /* a worker's: planning */
        bool planned, read, built, reading, checking;

        struct work build;
        struct error build_error;
        struct errand arrived;
        bool arrived_posted; /* atomic */
};

struct load {
        struct list link;
        uint64_t id; /* of this run, ascending */
        struct loads *loads;
        enum load_state state;
        struct error error;
        char *name, *source;
        char *pattern; /* NULL: replicas */
        struct caller caller;
        uid_t owner; /* of the name, unless somebody has it */
        bool sha256, dry_run, wait, no_evict, pin, probe, admin;
        bool served;                              /* on some of its devices, by an earlier round */
        bool over, settling;                      /* a round is, and not home yet; and is about to be */
        bool stale;                               /* the parts are those of an earlier round */
        bool given_up;                            /* atomic: it has ended; for steps that are still under way */
        uint64_t keep_alive_ns, drain_timeout_ns; /* 0: the default */
        struct source_roots *roots;               /* a reference; NULL: the loads' own */
        struct users *users;
        struct user_limits limits;
        struct user_charge charge; /* until it has ended */
        unsigned priority;         /* its weight where loads share the reader */
        bool has_priority;         /* it was asked for */
        uint64_t probe_seed;
        uint64_t lane;
        struct read_expect *expect; /* from its opening until it reads; NULL: nobody makes room */

        struct load_target *targets; /* as they were named; rank r is the r-th */
        size_t n_targets;
        struct room_part *rooms; /* what each needs */
        struct load_part *parts;
        size_t n_parts;
        uint64_t number; /* of the generations; 0 until it is known */
        struct list watchers, followers;
        struct list telling; /* in loads->telling: it has ended, and has followers left */
        uint64_t end_number; /* which of those that have ended it is; 0: it has not */
        uint64_t started_ns, ended_ns;

        struct resolved opened;   /* the source, all of it */
        struct load_watch behind; /* another load that brings what this one wants, too */
        struct errand resume;     /* it has ended */
        struct work step;         /* what is in flight; `pending` counts it and all that parts and targets have */
        struct error step_error;
        unsigned pending, queued, allocating, retries, rounds;
};

struct loads {
        struct list all;
        unsigned n_running, max_running;
        bool over; /* no more begin */
        uint64_t last_id;
        struct resident *resident;
        const struct sources *sources;
        struct reader *reader;
        struct work_pool *pool;
        uint64_t block_size;
        uint64_t keep_alive_ns, drain_timeout_ns; /* where a request names none; 0: without end */
        /* Tensors of this generation have arrived, or its tables are there now. */
        void (*arrived)(struct loads *loads, struct generation *generation);
        /* A load has ended that somebody follows: loads_follower(). NULL: nobody ever does. */
        void (*ended)(struct loads *loads);
        uint64_t n_ended;
        struct list telling; /* of struct load, that which ended first is first */
        void *context;
};

void loads_init(struct loads *loads);
bool loads_empty(const struct loads *loads);
void loads_cancel_all(struct loads *loads); /* and begins no more */

/* Memory for the next load is made ready no more; and about once a second: it may be, if nobody loads. */
void loads_leave_spare(struct loads *loads);
void loads_fill_spare(struct loads *loads);

/* Starts a load, or answers the one that is under way for the same name and source. *out is the
 * loads'; it has not ended when this returns. STREAMER_EINVAL, _ELIMIT, _ENOMEM, _ECANCELED. */
int loads_begin(struct loads *loads, const struct load_request *request, struct load **out, struct error *error);

/* The newest that has not ended and goes by this name; NULL if none. */
struct load *loads_find(struct loads *loads, const char *name);
void load_cancel(struct load *load);
void load_set_priority(struct load *load, unsigned priority);

void load_watch(struct load *load, struct load_watch *watch, void (*ended)(struct load_watch *, struct load *));
/* As one of very many, none of whom is told by the end: it goes on to watch until load_unwatch(). */
void load_follow(struct load *load, struct load_watch *watch);
void load_unwatch(struct load_watch *watch);
/* One of those who follow a load that has ended, of the one that did so first; NULL: nobody does. */
struct load_watch *loads_follower(struct loads *loads);
void load_progress(struct load *load, struct load_progress *progress);

/* How far one of its devices is, in the same words; `waits_ns`: for room, so long; 0: it does not. */
const char *load_target_state(const struct load_target *target, uint64_t now, uint64_t *waits_ns);

#endif
