/* SPDX-License-Identifier: Apache-2.0
 *
 * One load: from a source to generations that serve, one on each of its devices.
 *
 *   locating > opening > planning > queued > allocating > reading > checking > comparing > ended (ready, failed,
 *                 | ^        ^       ^ ^       |   |                               ^                     cancelled)
 *                 | |        |       | |       |   \-> copying, from the host cache -+
 *                 | |        |       | releasing: a device refused what was granted
 *                 v |        |       | from the host cache: no plan
 *               awaiting ----+-------+
 *                 \-> ended: resident already, or joined to a load in progress (coalesce.c)
 *
 * All transitions happen on the loop, in load_advance() (load.c), which has the whole life in one switch; only ends
 * are decided elsewhere, too (load_end). The work of a state runs elsewhere and reports through wake:
 *
 *   locating    a worker                  finds the lane of the source's file system, unless the loop knows it
 *   opening     that lane                 opens the source's files
 *   sampling    the lane                  some of their bytes, where a resident model is the same by all else; it comes
 *                                         between opening or awaiting and what follows
 *   awaiting    -                         the end of another load of the same files
 *   planning    the lane                  reads and parses headers, plans, prepares the tracking of arrivals
 *   queued      -                         until all devices together grant their memory (load_memory.c)
 *   allocating  the devices' threads      segments
 *   releasing   the same                  gives them back, to ask again
 *   copying     the same                  the bytes, from the host cache
 *   reading     reader threads            blocks; workers build the manifests, and check files with SHA-256
 *   checking    the lane                  the source again, and the model digest
 *   comparing   the devices' lanes        samples of the resident bytes with what was read (content/spot_check.h)
 *
 * Of a small load, whose files come whole with their headers, one step does the work of several states: a worker opens
 * and plans, and a worker does all from allocating to comparing (load.c, work ahead).
 *
 * Targets and parts. A target is a device and its generation. A part is what is planned and read once: replicas on
 * devices of one layout are targets of one part, whose blocks are copied to each; the host, where blocks are read in
 * place, is a part of its own; and so is each rank of a model that is split by rank. A replica that fails frees its
 * memory and the others continue; the load fails with the last one. Ranks succeed or fail together.
 *
 * If a file was replaced by another one while it was read, the load is superseded: a new one takes over its requests
 * and all names of its generations, at most three times. A file that was changed in place fails the load.
 *
 * Requests. A load serves one request or several: those that repeat it, and those that joined it under other names
 * (coalesce.c). Each has its own name, rights and answer (load_request.c). They move on, with all that watches them,
 * to the load that this one joins, or to the one that it begins again as.
 *
 * A load has ended as soon as its outcome is known, and all its requests with it. Watchers are called in a later turn
 * of the loop, since the end may be decided in the midst of a change; until then the load keeps its references to
 * generations. The object stays until work in flight is done and all subscribers are notified. Only cancel ends a load
 * early, not the end of its client's connection.
 */
#pragma once

#include "daemon/io/disk/disk_writer.h"
#include "daemon/io/reader/reader.h"
#include "daemon/load/content/arrivals.h"
#include "daemon/load/content/resolve.h"
#include "daemon/resident/admission/admission.h"
#include "daemon/resident/model.h"

enum load_state {
        LOAD_LOCATING,
        LOAD_OPENING,
        LOAD_SAMPLING,
        LOAD_AWAITING,
        LOAD_PLANNING,
        LOAD_QUEUED, /* from here on: its targets that are open have to be loaded */
        LOAD_ALLOCATING,
        LOAD_RELEASING,
        LOAD_COPYING,
        LOAD_READING,
        LOAD_CHECKING,
        LOAD_COMPARING,
        LOAD_READY, /* this and the following: ended */
        LOAD_FAILED,
        LOAD_CANCELLED,
};
/* As in the protocol: "resolving", "queued", "loading", "ready", "failed", "cancelled". */
const char *load_state_name(enum load_state state);
static inline bool load_ended(enum load_state state)
{
        return state >= LOAD_READY;
}

#define LOAD_DEVICES READ_TARGETS
#define LOAD_MAGIC 0x6c6f6164u

/* What is asked for. */
struct load_args {
        const char *source;
        const char *name;
        const char *const *devices; /* none: the only device */
        size_t n_devices;
        const char *pattern; /* of the files' names, rank r to the r-th device; NULL: replicas */
        bool sha256, dry_run;
        bool wait, no_evict;             /* queue for memory; evict nothing */
        bool background;                 /* its caller begins it when no other load runs */
        struct model_settings retention; /* what it asks for; zeroes: the defaults */
        bool admin;                      /* may change the retention of other users' models */
        bool probe;                      /* by the daemon itself, of a test model (source/probe.c) */
        const char *encrypted_only;      /* why other files are refused; NULL: they are not; constant */
        const struct caller *caller;
        const uid_t *owner;         /* of the name, if it is new; NULL: the caller */
        struct source_roots *roots; /* NULL: the daemon's */
        struct quotas *users;       /* charged for it; NULL: no quotas */
        const struct quota_limits *limits;
};

struct load;

#define LOAD_REQUEST_MAGIC 0x6c726571u

/* One request of a load, which owns it. It stays while it is watched, and otherwise at least until the loop's next
 * turn. */
struct load_request {
        unsigned magic;    /* LOAD_REQUEST_MAGIC */
        struct list link;  /* in load->requests; in load->answers once it has ended */
        struct load *load; /* changes when the load joins another, or begins again */
        char *name;
        uid_t uid;
        bool admin;
        char *rule;                    /* that limits its user, for messages; NULL: none */
        bool by_verb;                  /* of a verb that changes settings: nobody waits for it */
        struct settings_change change; /* that its name has not been given yet in a shared generation */
        unsigned settled;    /* what it asked for and the load has settled: due again if the load begins again */
        struct error error;  /* why it was denied, alone; code 0: its outcome is that of the load */
        uint64_t end_number; /* ascending by end; 0: it has not ended */
        struct list watchers, subscribers;
};

/* A watcher or subscriber of the end; embedded. load_unwatch() removes it; a watcher is removed before it is called. */
struct load_watch {
        struct list link;
        struct load_request *request;
        /* Called in a turn of the loop of its own; it may free the watch. NULL: a subscriber. */
        void (*ended)(struct load_watch *watch, struct load_request *request);
};

struct load_progress {
        enum load_state state;
        uint64_t generation, bytes, total, tensors, tensors_total, load_ns, restarts;
        bool stalled;
};

struct load_part;

struct sha_step {
        struct work work;
        struct callback item;
        struct load_part *part;
        size_t file, target;     /* whose bytes are hashed; after the last target its tensors are released */
        struct sha_check *check; /* of these, while pieces are left; else NULL */
};

/* One device. */
enum target_state {
        TARGET_OPEN,   /* it is ready, or fails, with the load */
        TARGET_SERVES, /* resident before the load */
        TARGET_FAILED, /* on its own, before the load ended */
};

struct load_target {
        struct load *load;
        struct load_part *part;
        struct device *device;
        struct generation *generation; /* a reference; NULL for a dry run, and once released */
        struct host_copy *cached;      /* in the host cache, referenced: its source; NULL: the files */
        enum target_state state;
        struct error error; /* why it failed */
        bool resident;      /* when the source was opened, these files were */
        /* TARGET_SERVES: the sequence and the number of the generation, which a load that waits does not hold. */
        uint64_t served, served_number;
        struct read_target copy;
        struct table manifest; /* from the host cache, until it is the generation's */
        struct table arrival;  /* the generation's, once that is ready */
        enum page_kind wrong;  /* pages whose bytes were not those that were read; PAGES_NONE */
        struct work step;      /* on the device's thread, or in its lane */
        struct error step_error;
};

enum part_state {
        PART_IDLE,    /* not planned; from the host cache, never */
        PART_PLANNED, /* counts in the load's progress from here on */
        PART_READING, /* blocks may be in flight */
        PART_READ,
        PART_FAILED,
};

/* Of a part that reads files from their copies in the disk cache (part_disk.c). */
struct part_disk {
        struct load_part *part;
        struct read_job job;    /* of the copies, before that of the part */
        struct plan first;      /* the plan, with the blocks of files that have copies alone; likewise the next */
        struct plan rest;       /* with those that are left after that */
        struct object *objects; /* by file: the copy; zero: none. Borrowed descriptors */
        unsigned char (*expected)[DIGEST_SIZE]; /* by leaf, of these files */
        uint32_t *landed; /* atomic, by block of `first` that begins a chunk: how many of its blocks are in memory */
        uint64_t bytes;   /* atomic: that have landed */
};

struct load_part {
        struct load *load;
        enum part_state state;
        struct load_target *targets[LOAD_DEVICES];
        size_t n_targets;

        struct resolved resolved; /* of the load's source, or of a rank's files */
        struct source_identity identity;
        struct source_files *files;
        struct source_notes *notes;
        struct arrivals arrivals;
        uint64_t manifest_size;     /* of each target, once it is planned */
        struct read_job job;        /* with the targets' copies, in their order */
        struct read_job *reading;   /* atomic: this one, or that of the copies on disk; NULL: not yet */
        struct part_disk *disk;     /* NULL: nothing is read from the disk cache */
        struct disk_write *write;   /* what is stored there behind the load; a reference; NULL: nothing */
        struct sha_step *sha_steps; /* of each file */
        size_t files_checked;
        bool built;          /* the manifest */
        uint64_t noticed_ns; /* clients were notified of tensors last; 0: not yet */
        bool notice_due;     /* of later ones they were not */
        bool checking;       /* a worker's, while the load is CHECKING */

        struct work build;
        struct error build_error;
        struct callback arrived;
};

/* A model that was evicted for a load. */
struct load_eviction {
        char *name;
        const struct device *device;
        uint64_t generation, bytes;
};
#define LOAD_EVICTIONS_MAX 256 /* that are listed; the log has all */

struct load {
        unsigned magic; /* LOAD_MAGIC */
        struct list link;
        uint64_t id; /* ascending in this run */
        struct loads *loads;
        enum load_state state;
        struct error error;
        char *name; /* under which it began */
        char *source;
        char *pattern; /* NULL: replicas */
        bool sha256, dry_run, probe;
        struct keyring *keyring;    /* a reference: of the configuration when it began */
        const char *encrypted_only; /* as in its request */
        struct caller caller;       /* the first request's, for whom the source is opened */
        uid_t owner;                /* of the name, if it is new */
        struct source_roots *roots; /* a reference */
        struct quotas *users;       /* the caller is charged; NULL: no quotas */
        struct quota_limits limits;
        struct list requests, answers; /* of struct load_request; answers: that have ended */
        bool wait, no_evict;           /* terms of admission: of all requests together (load_relax) */
        bool background;               /* of its first request */
        bool abandoned;                /* atomic: it has ended; for steps still in flight */
        struct quota_charge charge;    /* until it has ended */
        unsigned priority;             /* its weight where loads share the reader */
        uint64_t lane;
        struct announced_load announced; /* from opening to reading: other loads make way */

        struct load_target *targets; /* as named; rank r is the r-th */
        size_t n_targets;
        struct admission_part demands[LOAD_DEVICES]; /* of each open target */
        struct admission_request admission;
        struct load_eviction *evictions;
        size_t n_evictions;
        struct load_part *parts;
        size_t n_parts;
        uint64_t number; /* of the generations; 0 until it is known */
        uint64_t started_ns, ended_ns;

        struct source_set opened;     /* the source, all of it */
        struct resolve_budget budget; /* of its headers and tables, until these are freed */
        struct object *ranked;        /* copies of its objects, by rank and part; NULL: replicas */
        struct load *awaits;          /* another load of the same files, while AWAITING; NULL: it has ended */
        struct list in_awaiting;      /* in awaits->awaiting */
        struct list awaiting;         /* loads that await this one */
        struct callback advance;      /* load_advance(), on a later turn of the loop */
        struct callback end;          /* on a later turn of the loop: calls the watchers of what has ended */
        struct work step;             /* of the load, as opposed to those of its targets and parts */
        struct error step_error;
        enum load_state step_of; /* the state whose steps are in flight; constant meanwhile: threads read it */
        bool stepping;           /* the load's own step is in flight */
        bool is_new;             /* no model serves under its name: its files are probably not resident */
        bool closed;             /* its files; what is left of its tables is small */
        bool is_small;           /* a worker does the work of several states in one step; see load.c */
        struct {
                unsigned states;    /* bit set of those whose work is done, and whose results are to be taken */
                struct error error; /* of the last of them */
        } ahead;
        unsigned n_steps; /* of targets, in flight */
        unsigned pending; /* all that is in flight or posted, and subscribers: the load is not freed */
        unsigned retries;
        bool sampled;      /* the parts' identities have their samples, where they need them */
        bool cached;       /* it is copied from the host cache */
        bool granted;      /* the memory that it is QUEUED for */
        bool refused;      /* a device refused what was granted */
        bool replaced;     /* the check has found other files in place of those that were read */
        bool superseded;   /* it has been begun again, as another load */
        bool joined;       /* its requests have joined another load */
        unsigned restarts; /* of the same request, before this load */
};

#define load_each_target(t, load)                                                                                      \
        for (struct load_target *t = (load)->targets; t < (load)->targets + (load)->n_targets; t++)
#define load_each_part(part, load)                                                                                     \
        for (struct load_part *part = (load)->parts; part < (load)->parts + (load)->n_parts; part++)

#define LOAD_RESTARTS 3 /* of a load whose files were replaced while it read them */

struct loads {
        struct list all;
        unsigned n_running, max_running;
        unsigned n_background; /* of those that run */
        bool over;             /* the daemon ends: no load begins */
        uint64_t last_id;
        struct resident *resident;
        const struct sources *sources;
        struct keyring *keyring; /* a reference, which a reload replaces */
        struct reader *reader;
        struct work_pool *pool;
        struct disk_writer *disk_writer; /* NULL: there is no disk cache */
        uint64_t block_size;
        struct model_settings defaults; /* where a request names none */
        /* The source that is to be loaded under this name without a request; NULL: none. NULL: nothing ever is. */
        const char *(*desired_source)(const struct loads *loads, const char *name);
        /* Sets what the name had on the device before a restart, if it waits to be restored there. NULL: none does. */
        void (*desired_settings)(const struct loads *loads, const char *name, const struct device *device,
                                 struct model_settings *settings);
        /* Tensors of this generation have arrived, or its tables are complete. */
        void (*arrived)(struct loads *loads, struct generation *generation);
        /* loads_notify_arrivals() is to be called then. NULL: each arrival is notified at once. */
        void (*arrives_later)(struct loads *loads, uint64_t at_ns);
        /* Requests of the load (load->answers) have ended, in a turn of the loop of its own; `subscribed`: some have
         * subscribers. NULL: not called. */
        void (*ended)(struct load *load, bool subscribed);
        /* What is stored from now on may evict entries of the disk cache. NULL: no model is pinned. */
        void (*stores)(struct loads *loads);
        uint64_t n_ended; /* ends of loads and of single requests */
        void *context;
};

void loads_init(struct loads *loads);
bool loads_empty(const struct loads *loads);
/* Each, if there is any, waits for memory. */
bool loads_all_wait(const struct loads *loads);
/* No load begins any more, and watchers are called before this returns. */
void loads_cancel_all(struct loads *loads);

/* When a load begins or ends, and about once a second: devices prefault memory only while no load is in progress. True:
 * it is to be called again in a second. */
bool loads_check_prefault(struct loads *loads);

/* Notifies of tensors that have arrived since clients were notified last; when it is to be called again, UINT64_MAX:
 * when arrives_later() says so. */
uint64_t loads_notify_arrivals(struct loads *loads);

/* Begins a load, or joins the one in progress for the same name and source. *out is the load's and has not ended when
 * this returns. STREAMER_EINVAL, _EPERM (settings of another user's model), _ELIMIT, _ENOMEM, _ECANCELED. */
int loads_begin(struct loads *loads, const struct load_args *args, struct load_request **out, struct error *error);

/* The name of a model that is loaded without one (default_name.c), derived from `named_after` (NULL: from `source`):
 * no other source has it. malloc'd. Canonicalises both; their errors, or STREAMER_ENOMEM. */
int loads_default_name(const struct loads *loads, const char *source, const char *named_after, char **name,
                       struct error *error);

/* The newest that has not ended and has this name; NULL if none. */
struct load *loads_find(struct loads *loads, const char *name);
void load_cancel(struct load *load);
/* A verb changes settings of this name, and of that name alone, for a user who may do so: on each device where it leads
 * to something; of a load, which has the highest priority of its names; and of a resident model that a load may still
 * turn out to share. `failures`: failed loads count. 1; 0: the name leads to nothing; STREAMER_ENOMEM. */
int loads_change_settings(struct loads *loads, const char *name, bool failures, uid_t uid, bool admin,
                          const struct settings_change *change, struct error *error);

/* The rule: only the owner of a model, and an admin, decides how long it stays. */
bool retention_allowed(const struct model_settings *asked, uid_t owner, uid_t uid, bool admin);

/* With ended NULL as one of many subscribers: the load stays until each has called load_unwatch(). */
void load_watch(struct load_request *request, struct load_watch *watch,
                void (*ended)(struct load_watch *, struct load_request *));
void load_unwatch(struct load_watch *watch);
/* Its own state: that of the load, or LOAD_FAILED if it was denied; and its error. */
enum load_state load_request_state(const struct load_request *request);
const struct error *load_request_error(const struct load_request *request);
void load_progress(const struct load *load, struct load_progress *progress);

/* The generation of a target; of one that serves, also where the load holds no reference to it. NULL: none, or it is no
 * longer ready. */
struct generation *target_generation(const struct load_target *target);

/* The segments that a target needs: how many, and their sizes; and what it needs in all, with its tables. */
size_t target_segments(const struct load_target *target, const uint64_t **sizes);
uint64_t target_needs(const struct load_target *target);

/* The state of one device, in the same words; `waits_ns`: how long it has waited for memory, 0: it does not. */
const char *load_target_state(const struct load_target *target, uint64_t now, uint64_t *waits_ns);
