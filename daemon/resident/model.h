/* SPDX-License-Identifier: Apache-2.0
 *
 * Resident models: generations with their names, memory and leases. Owned by the loop thread.
 *
 *   loading > ready > draining > revoked > unloaded
 *      \          \       ^
 *       \          > cached (host_cache.h)
 *        > failed          +-- the last name was removed: by unload, or because a newer generation serves
 *
 * A generation is one version of a model on one device. The generations of one load share a number (replicas,
 * or the ranks of a model), and so does a replica that is added later. On each device a name leads to at most
 * one generation that serves and one that loads. Two names may lead to one generation (aliases). A name
 * belongs to the user who first loaded a model under it, whoever loads the next generation; a generation
 * belongs to the owner of its oldest name.
 *
 * A name is removed by unload, expiry, eviction, or when a newer generation takes it, the load fails or the host cache
 * drops the model: always by one function, which notifies of each name once.
 *
 * Removing a name does not free memory. A generation that was dropped (draining, failed) keeps its memory
 * until its last lease and its last reference end; then the device's thread frees it, and only then is the
 * device's budget credited. A failed generation stays listed, without memory, until it is unloaded, replaced,
 * or displaced by later failures.
 *
 * No function of this module frees a generation, its argument or another: what has ended is reaped in a later turn of
 * the loop. The hooks that report a change are called in the midst of it, so they only mark what is to be done later.
 */
#pragma once

#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/quota.h"
#include "daemon/base/tree.h"
#include "daemon/crypt/encryption.h"
#include "daemon/device/device.h"
#include "daemon/resident/callers.h"
#include "daemon/resident/published.h"
#include "daemon/resident/settings.h"
#include "daemon/source/source.h"
#include "proto/manifest.h"
#include "proto/messages.h"

#include <sys/types.h>

struct disk_write;
struct persist;
struct persisted;

#define GENERATION_SEGMENTS MANIFEST_MAX_SEGMENTS
#define GENERATION_MAGIC 0x67656e65u

/* Of the generations of one name, the first of this order is what the name means. */
enum generation_state {
        GENERATION_READY,
        GENERATION_LOADING,
        GENERATION_CACHED, /* in host memory, not on its device (host_cache.h) */
        GENERATION_FAILED,
        GENERATION_DRAINING,
        GENERATION_REVOKED,  /* draining; what clients may have mapped stays in quarantine until its leases end */
        GENERATION_UNLOADED, /* seen in its last change only */
};
const char *generation_state_name(enum generation_state state);
struct generation;
/* As clients list it: a loading one is "queued" while its load waits for memory. */
const char *generation_listed_state(const struct generation *generation);

/* A generation in the service manager's fd store, which resident/persist writes. */
enum stored_state {
        STORED_NOT,      /* not yet, or the store has no capacity for it */
        STORED_BEGUN,    /* it is being stored */
        STORED_WHOLE,    /* it is complete there, and may be the fallback of a name */
        STORED_REMOVING, /* it is being removed */
        STORED_ENDED,    /* it was removed, or could not be stored: it is not stored again */
        STORED_LEFT      /* the daemon ends, and the store keeps its memory for the next run */
};

/* ---- what has become of models ---- */

#define ENDED_MAX 128
#define ENDED_TEXT 400

enum end { END_UNLOADED, END_REPLACED, END_EXPIRED, END_EVICTED, END_FAILED, END_DAMAGED };
const char *end_name(enum end end); /* "unloaded", ... */

struct end_reason {
        enum end end;
        char *text; /* printable; "by uid 1000"; NULL: none */
};
/* What is too long is cut. Without memory it has no text. */
void end_reason_set(struct end_reason *reason, enum end end, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

struct ended {
        struct end_reason reason;
        uint64_t generation, at_ns;
        const char *device; /* constant */
        char name[PROTO_NAME_MAX + 1];
};

/* The last names that models have lost: it overwrites its oldest entry, and ends with the daemon. */
struct ended_ring {
        struct ended entries[ENDED_MAX];
        uint64_t n; /* that were ever added */
};

/* Of this name, the one before `last` (NULL: the latest); NULL: none is left. */
const struct ended *ended_find(const struct ended_ring *ring, const char *name, const struct ended *last);

/* ---- generations ---- */

/* Of a further name, to the user who gave it. */
struct name_charges {
        struct quota_charge name;  /* one model */
        struct quota_charge bytes; /* of the model: on one of the user's names */
};

struct model_name {
        struct list link;          /* in generation->names */
        struct list by_name;       /* in resident->by_name */
        struct tree_node in_order; /* in resident->names */
        struct generation *generation;
        struct name_charges charges;
        uint64_t sequence; /* of all names, ascending */
        uid_t owner;       /* the user who first loaded a model under it, and may load another source under it */
        struct model_settings settings; /* its own: model_name_set_settings(), model_name_change_settings() */
        unsigned asked; /* of enum model_setting: what the load of its generation, or a verb since, has asked for */
        char *source;   /* canonical: what was loaded under it; NULL: the generation's */
        const struct caller *caller; /* for whom it was loaded under it, of resident->callers; NULL: the generation's */
        /* The generation that the fd store still has under this name, because this one's is not stored yet; else NULL.
         */
        struct generation *fallback;
        char text[];
};

/* The manifest as a reader sees it; `table` holds one. */
struct manifest_view table_manifest(const struct table *table);

/* Where the bytes of a model came from, as clients see it: "store", "disk" (its cache), "resident" (the host cache). */
enum model_origin { ORIGIN_UNKNOWN, ORIGIN_STORE, ORIGIN_DISK, ORIGIN_RESIDENT };
const char *model_origin_name(enum model_origin origin); /* "": not known, after a restart */

/* In the order of the latest changes, while clients subscribe to them (serve/events/changes.h). */
struct change_link {
        struct list in_changes;
        uint64_t number; /* ascending */
        bool removal;    /* of a name, else a generation's */
};

/* Its members are grouped so that none is padded: a host may have ten thousand. */
struct generation {
        unsigned magic; /* GENERATION_MAGIC */
        enum generation_state state;
        uint64_t sequence; /* in resident->generations, ascending; never reused */
        struct resident *resident;
        uint64_t number; /* 0 until it is known to be new */
        struct list names;
        struct model_name *last_name; /* that was removed; NULL: none */
        struct model_name *standing;  /* the name for which it has charges, and which has none; NULL: it was removed */
        char *source;                 /* canonical */
        struct device *device;
        struct segment *segments; /* generation_make_segments() */
        unsigned n_segments;
        unsigned rank, n_ranks;   /* n_ranks 0: not one of several ranks */
        enum model_origin origin; /* of its bytes */
        uint64_t charged;         /* bytes taken from the device's budget */
        uint64_t data_bytes, n_tensors;
        unsigned char digest[DIGEST_SIZE];
        uint64_t load_ns;
        struct stages stages; /* of its load; zeroes where it was not read: restored, or from the host cache */
        struct list leases;
        unsigned n_leases;
        unsigned refs; /* of work that may touch the memory: the load, a verify */
        /* The combined settings of its names and its ranks' (settings_combine), which model.c alone writes. Without a
         * name: those of the last one, not pinned. */
        struct model_settings settings;
        uint64_t last_used_ns;       /* load, attach, detach */
        uint64_t deadline_ns;        /* as it is in the tree of idle.c */
        uint64_t drained_by_ns;      /* draining: it is unloaded by force then; 0: never */
        struct error *error;         /* generation_error() */
        const struct caller *caller; /* for whom it was loaded: generation_set_caller() */
        /* It was not loaded: a client made it (daemon/publish); else NULL. Constant while it is ready. */
        struct published *published;
        struct encryption *encryption; /* of its files, or of the model that it was made from; NULL: none */
        struct source_notes *notes;    /* of its load; NULL: none, or not known after a restart */

        bool releasing;
        bool queued;                          /* loading: its load waits for memory */
        bool stale;                           /* the last load of it could not ask its store for the present version */
        bool has_identity, verified;          /* verified: files matched published SHA-256 digests */
        bool reported;                        /* a change of it was: its end is, too */
        bool full_logged;                     /* the lack of capacity in the fd store was logged */
        bool was_shared;                      /* DEVICE_SHARED_WRITABLE: with processes of the user `shared_by` */
        unsigned char idle_place;             /* enum idle_place */
        enum generation_state reported_state; /* at the last report */
        uint64_t reported_names;              /* its names up to this sequence were there then */
        enum stored_state stored;             /* set by generation_set_stored() alone */
        unsigned n_fallbacks;                 /* names of newer generations that have it as their fallback */
        uid_t shared_by;

        struct list link;             /* in resident->generations, oldest first */
        struct list in_state;         /* in resident->in_state[state] */
        struct list reap;             /* in resident->reap: something that held it back has ended */
        struct tree_node by_number;   /* in resident->by_number, once it has one */
        struct tree_node by_identity; /* in resident->by_identity, once it has one */
        struct tree_node by_digest;   /* in resident->by_digest, while it is ready */
        struct tree_node by_source;   /* in resident->by_source */
        struct source_identity identity;
        struct source_files *files;      /* that it was loaded from; NULL: not known, after a restart */
        unsigned char sums[DIGEST_SIZE]; /* over these digests, as in source_files */
        char *pattern;                   /* of the files of ranks; NULL: replicas */
        /* Its bytes, and one model, to the user who loaded it; once no name of that user is left, to that of the oldest
         * name that is. */
        struct quota_charge quota_charge, model_charge;
        struct table manifest, arrival; /* arrival: while it loads */
        struct disk_write *write;       /* reads its memory for the disk cache, a reference; NULL: nothing does */
        struct end_reason end;          /* set before its names are removed */

        /* As it is in the trees of idle.c. */
        struct tree_node by_value, by_deadline;
        uint64_t idle_bytes, idle_priority, idle_since_ns;
        struct host_copy *copy; /* cached: the copy in host memory; else NULL */
        uint64_t dropped_ns;    /* draining or failed since */
        struct work work;       /* the release */

        /* What higher modules keep for it: tables of their own would need a look-up at each change. */
        struct change_link change;
        struct list in_persist;          /* in persist->changed, or ->waiting for capacity */
        uint64_t row_facts, lease_facts; /* of which persist has made rows: hashes */
        struct persisted *persisted;     /* its entry in the fd store; its memory is freed only after that */
        struct list in_unchecked;        /* in resident->unchecked: restored, and its bytes not compared since */
};

/* Clients and requests know its state: what a change is about are its new names. One that loads changes without a
 * change of its state. */
static inline bool generation_state_is_reported(const struct generation *generation)
{
        return generation->reported && generation->reported_state == generation->state &&
               generation->state != GENERATION_LOADING;
}

static inline bool generation_drains(const struct generation *generation)
{
        return generation->state == GENERATION_DRAINING || generation->state == GENERATION_REVOKED;
}

/* What a generation counts as where memory is needed (idle.c). */
enum idle_place {
        IDLE_NOWHERE,
        IDLE_EVICTABLE,
        IDLE_FREEING, /* its memory will be free soon: it is being released, or copied to the host cache */
        IDLE_HELD,    /* likewise, unless the work that touches it hangs */
        IDLE_PINNED,  /* it would be evictable if it were unpinned */
};

/* Those of one device. */
struct idle {
        struct tree by_value;     /* evictable: the least valuable first */
        uint64_t bytes;           /* of these */
        uint64_t freeing, pinned; /* bytes */
        struct tree held;         /* the one that was dropped last is the first */
};
#define RESIDENT_DEVICES 64

struct resident {
        struct list generations;
        uint64_t last_sequence;
        struct list reap;      /* of struct generation: examined in a later turn of the loop */
        struct list unchecked; /* of struct generation, oldest first */
        struct wake *wake;     /* posts that */
        struct callback reap_later;
        /* Of its generations: lists by state, the latest change last, and trees by number, by identity, by digest and
         * by source; of these the oldest first. */
        struct list in_state[GENERATION_UNLOADED + 1];
        size_t n_in_state[GENERATION_UNLOADED + 1];
        uint64_t n_changes; /* of generations and of names: what is derived from them and has seen this number is valid
                             */
        size_t n_published; /* of those that are ready */
        uint64_t n_readied; /* how often one became ready */
        struct tree by_number, by_identity, by_digest, by_source;
        uint64_t n_cached, n_partly_cached; /* cached generations; those among them that lack a rank */
        struct idle idle[RESIDENT_DEVICES]; /* by device number */
        struct tree deadlines;              /* of generations, by the earliest time at which they may expire (idle.c) */
        struct tree callers;                /* for whom models were loaded (callers.h) */
        struct buckets by_name;             /* of struct model_name, by what their text hashes to */
        struct tree names; /* the same, and the last names of those that drain: by text, then the oldest first */
        uint64_t last_name;
        struct device **devices;
        size_t n_devices;
        uint64_t last_number;
        uint64_t failed_kept;
        struct ended_ring ended; /* names that models have lost */
        struct host_cache *cache;
        struct admission *admission;      /* requests for memory; NULL: there are none */
        struct callback capacity_changed; /* runs admission's examination of them */
        /* Hooks of the modules above, which set them as they begin; NULL: none.
         * A cached generation has lost its last name: the host cache's copy of it. */
        void (*drop_copy)(struct generation *generation);
        /* Nothing uses the generation any more but the fd store. generation_reap_later() is called when that does not.
         */
        void (*remove_stored)(struct generation *generation);
        /* A change that a client may wait for; called at most once a change, never by a query. `removed`: a name, where
         * others are left; else NULL. */
        void (*changed)(struct resident *resident, struct generation *generation, const char *removed);
        /* Then, of each name that may lead to something else now: also called in the midst of a change. */
        void (*name_changed)(struct resident *resident, struct generation *generation, const char *name);
        void *context;
        /* What outlives the daemon may have changed: of a generation, or what a name leads to on its device. */
        struct persist *persist;
        void (*generation_due)(struct persist *persist, struct generation *generation);
        void (*name_due)(struct persist *persist, const char *name, const struct device *device);
};

void resident_init(struct resident *resident, struct wake *wake, struct device **devices, size_t n_devices,
                   uint64_t failed_kept);

/* Memory has become free, or soon will: requests for it are examined on a later turn of the loop. */
void resident_capacity_changed(struct resident *resident);

/* STREAMER_ENOMEM, with the figures of the device and what holds its memory. */
int resident_full_error(const struct resident *resident, const struct device *device, uint64_t needed, uint64_t unused,
                        struct error *error);

/* NULL name: the only device; "cpu" is "host". NULL with *error (may be NULL) if there is none, or more than one. */
struct device *resident_device(struct resident *resident, const char *name, struct error *error);

/* ---- look-ups; NULL if none ---- */

/* The generations of a number, oldest first; it is not 0. */
struct generation *resident_first_numbered(const struct resident *resident, uint64_t number);
struct generation *generation_next_numbered(const struct generation *generation);
#define resident_each_numbered(g, resident, n)                                                                         \
        for (struct generation *g = resident_first_numbered(resident, n); g != NULL; g = generation_next_numbered(g))

/* A generation with all of its ranks, oldest first, in whatever state. */
struct generation *generation_first_rank(const struct generation *generation);
struct generation *generation_next_rank(const struct generation *generation, const struct generation *rank);
#define generation_each_rank(rank, g)                                                                                  \
        for (struct generation *rank = generation_first_rank(g); rank != NULL; rank = generation_next_rank(g, rank))

/* The generations of these files, but for the sample, oldest first. */
struct generation *resident_first_identical(const struct resident *resident, const struct source_identity *identity);
struct generation *generation_next_identical(const struct generation *generation);
#define resident_each_identical(g, resident, identity)                                                                 \
        for (struct generation *g = resident_first_identical(resident, identity); g != NULL;                           \
             g = generation_next_identical(g))

/* The generations that are ready and have this digest, oldest first. */
struct generation *resident_first_ready_digest(const struct resident *resident,
                                               const unsigned char digest[DIGEST_SIZE]);
struct generation *generation_next_ready_digest(const struct generation *generation);

/* The generations of this source, in its canonical form, in whatever state, oldest first. */
struct generation *resident_first_of_source(const struct resident *resident, const char *source);
struct generation *generation_next_of_source(const struct generation *generation);
#define resident_each_of_source(g, resident, source)                                                                   \
        for (struct generation *g = resident_first_of_source(resident, source); g != NULL;                             \
             g = generation_next_of_source(g))

/* The names of this text, and the last names of what drains, in the order of their generations. */
struct model_name *resident_first_named(const struct resident *resident, const char *text);
struct model_name *model_name_next(const struct model_name *name); /* of any text */
#define resident_each_named(n, resident, name)                                                                         \
        for (struct model_name *n = resident_first_named(resident, name); n != NULL && strcmp(n->text, name) == 0;     \
             n = model_name_next(n))
/* The first from this text on. */
struct model_name *resident_name_from(const struct resident *resident, const char *text);

/* The generations that generation_matches_name(), oldest first: the one after `last`, NULL: the first. Any of them may
 * change meanwhile. */
struct generation *resident_next_matching(struct resident *resident, const char *name, const struct generation *last);
#define resident_each_matching(g, resident, name)                                                                      \
        for (struct generation *g = resident_next_matching(resident, name, NULL); g != NULL;                           \
             g = resident_next_matching(resident, name, g))

struct generation *resident_ready(struct resident *resident, const char *name);
/* STREAMER_ENOENT, with what happened to the model of this name. (Clients suggest the nearest one.) */
int resident_no_model(const struct resident *resident, const char *name, struct error *error);
/* The newest that has the name, in this state; NULL device: on any. */
struct generation *resident_on(struct resident *resident, const char *name, enum generation_state state,
                               const struct device *device);
/* The newest of the first state in which one has the name. */
struct generation *resident_named(struct resident *resident, const char *name);
/* The same, else the newest that drains and had the name last. */
struct generation *resident_any(struct resident *resident, const char *name);
/* Ready or loading, on this device, from exactly these files; number 0: any. */
struct generation *resident_same(struct resident *resident, const struct source_identity *identity,
                                 const struct device *device, const struct generation *except, uint64_t number);
/* A generation that is ready, or in the host cache, is equal but for the sample of the files' bytes, which is to be
 * compared. */
bool resident_resembles(const struct resident *resident, const struct source_identity *identity);
/* The number of the ready or loading generation of these files under this name, which a replica on another
 * device shares; 0 if there is none. */
uint64_t resident_shared_number(struct resident *resident, const struct source_identity *identity, const char *name);
/* A generation of this number is on the device, in any state, and not just about to be freed. A cached one does not
 * count if it will lose all its names to `successor`. */
bool resident_holds(const struct resident *resident, uint64_t number, const struct device *device,
                    const struct generation *successor);

/* The hash bucket of this name. */
struct list *resident_bucket(struct resident *resident, const char *name);
bool generation_has_name(const struct generation *generation, const char *name);
struct model_name *generation_find_name(const struct generation *generation, const char *name); /* or NULL */
/* The source that was loaded under the name: the same files may be resident under names of several paths. */
const char *model_name_source(const struct model_name *name);
/* The same of the caller: a later run opens only what they may open then. */
const struct caller *model_name_caller(const struct model_name *name);
/* Another path to the same files was loaded under it. The caller of this function reports the change. STREAMER_ENOMEM.
 */
int model_name_set_source(struct model_name *name, const char *source, const struct caller *caller);
/* Sets all of them. `asked`: those that a request or a verb has asked for; 0 at first. */
void model_name_set_settings(struct model_name *name, const struct model_settings *settings, unsigned asked);
/* What a request or a verb asks for. The caller of these two reports the change, if clients are to be notified. */
void model_name_change_settings(struct model_name *name, const struct settings_change *change);
/* The name's generation is stored, or will not be: no name of another leads to what the store had under it. */
void model_name_settle(struct model_name *name);
const char *generation_name(const struct generation *generation); /* the oldest, or the last it had */
/* Bytes of its segments that have small pages because the kernel found no huge page; 0 before they are allocated. */
uint64_t generation_small_page_bytes(const struct generation *generation);
/* The number of tensors that have arrived so far. */
uint64_t generation_arrived(const struct generation *generation);

/* ---- owners ----
 *
 * A name belongs to the user who first loaded a model under it, whoever loads the next generation: others may not load
 * another source under it, publish under it or unload it. A failure reserves no name, but is its loader's to remove. A
 * generation's settings and leases belong to the owner of its oldest name. Admins may do everything; that is the
 * caller's to know. */

/* False: the name is nobody's, since no generation has it, or only failures. *owner is untouched then. */
bool resident_name_owner(struct resident *resident, const char *name, uid_t *owner);
/* Of what unload would remove: also of a failure, if nothing else has the name. */
bool resident_removal_owner(struct resident *resident, const char *name, uid_t *owner);
uid_t generation_owner(const struct generation *generation);

/* ---- life ---- */

/* The only way in which a state changes; asserts that the table of model.c allows it. */
void generation_set_state(struct generation *generation, enum generation_state state);
void generation_set_stored(struct generation *generation, enum stored_state stored);

/* NULL on ENOMEM. It is loading, has one name, `standing`, and one reference (the load's). `owner`: see
 * generation_add_name(). */
struct generation *generation_new(struct resident *resident, const char *name, const char *source,
                                  struct device *device, uid_t owner);
/* For whom it is loaded; until then root. STREAMER_ENOMEM. */
int generation_set_caller(struct generation *generation, const struct caller *caller);
void generation_assign_number(struct generation *generation);
void generation_set_number(struct generation *generation, uint64_t number);
/* Of the files that it is loaded from. */
void generation_set_identity(struct generation *generation, const struct source_identity *identity);

/* Charges the user for a model, or a further name, of this name on the device; where it replaces one that is charged to
 * them, only from quota_commit() on. STREAMER_ELIMIT, STREAMER_ENOMEM. */
int resident_charge_model(struct resident *resident, const char *name, const struct device *device,
                          struct quotas *users, uid_t uid, const struct quota_limits *limits,
                          struct quota_charge *charge, struct error *error);

/* Charges a user who gives it a further name for its bytes, unless that user is charged for them. STREAMER_ELIMIT,
 * STREAMER_ENOMEM. */
int generation_charge_user(const struct generation *generation, struct quotas *users, uid_t uid,
                           const struct quota_limits *limits, struct quota_charge *charge, struct error *error);
/* What that would be; 0: not known before its load is planned. */
uint64_t generation_user_bytes(const struct generation *generation);

/* What a generation takes of its device's budget and of its user's: the segments, and the manifest. (The arrival log
 * is a small part of that.) */
uint64_t generation_needs(const uint64_t *segments, size_t n, uint64_t manifest_size);
/* Takes `bytes` from the device's budget, or STREAMER_ENOMEM with figures and holders. */
int generation_charge(struct generation *generation, uint64_t bytes, struct error *error);
/* Credits the device with what was charged; nothing may be allocated. */
void generation_uncharge(struct generation *generation);

/* Ranks are evicted together: each is in use, recently used, or pinned if any of them is, and has the settings that the
 * names of all make together. */
bool generation_is_rank_of(const struct generation *generation, const struct generation *other); /* or the same */
/* Under this name; where ranks have lost it, one rank that has it counts for all that have any name. */
bool generation_matches_name(const struct generation *generation, const char *name);
/* By leases or references, also of its other ranks that have a name. */
bool generation_is_held(const struct generation *generation);
/* Ready, neither pinned nor held: it may be evicted, and expires. */
bool generation_is_idle(const struct generation *generation);
/* Removes all its names, the oldest first, for the reason that generation->end has. */
void generation_drop_all(struct generation *generation);
/* It drains, or is about to, and is unloaded by force after so long; 0: never. */
void generation_drain_for(struct generation *generation, uint64_t timeout_ns);
void generation_drain_until(struct generation *generation, uint64_t at_ns); /* 0: for ever */
/* Of one that drains: its leases are revoked. What their clients may have mapped stays allocated, in
 * quarantine, until the leases end. */
void generation_revoke(struct generation *generation);
/* Makes `segments` this long, with zeroes behind those that it has; nothing else may use them meanwhile.
 * STREAMER_ENOMEM. */
int generation_make_segments(struct generation *generation, size_t n);
/* What its load ended with; code 0: it has not failed. */
const struct error *generation_error(const struct generation *generation);
/* On the device's thread: gives the segments back, which n_segments still counts. */
void generation_release_segments(struct generation *generation);
/* Frees its device memory, and keeps its tables. */
void generation_vacate(struct generation *generation);
/* Sets last_used_ns to now, of all ranks. */
void generation_used(struct generation *generation);

/* It serves from now on; the generations that served its names on its device drain. */
void generation_ready(struct generation *generation);
/* The name, which it has, leads to it alone on its device: another that serves under the name loses it, drains for the
 * drain timeout of this one, passes on those settings of the name that have not been asked for since, and stays in
 * the fd store until this one is there; one that has failed under it loses it, too. */
void generation_take_over(struct generation *generation, const char *name);
void generation_fail(struct generation *generation, const struct error *error);
/* Not needed (the model is resident already): it ends, without an event unless one of it was sent. */
void generation_discard(struct generation *generation);
/* As generation_fail(), and it is not listed: its request has ended with the error. */
void generation_fail_unlisted(struct generation *generation, const struct error *error);

/* Notifies of a change that its own functions do not (an added name). */
void generation_changed(struct generation *generation);
/* The name may lead to something else, though it is no new one and its generation is in the same state: a load serves
 * it. */
void generation_name_changed(struct generation *generation, const char *name);
/* What decides on its place has changed, or how long it may drain: as generation_changed(), without an event. */
void generation_settings_changed(struct generation *generation);

/* `source`: canonical, of the load that adds the name, and `caller`, for whom it does (NULL: the generation's).
 * `owner`: of a name that no generation has, or only failures; else the owner stays. Takes over the charges (NULL:
 * none). Its settings are zeroes until model_name_set_settings(). STREAMER_ENOMEM, and these stay the caller's. */
int generation_add_name(struct generation *generation, const char *name, const char *source,
                        const struct caller *caller, uid_t owner, struct name_charges *charges);
/* Removes a name that it has, for the reason that generation->end has. Without its last one the generation drains, or
 * ends if it had failed. */
void generation_drop_name(struct generation *generation, const char *name);

/* References of work that may touch its memory. One that was dropped is freed after the last put. */
void generation_get(struct generation *generation);
void generation_put(struct generation *generation);
/* In a later turn of the loop, takes a generation that was dropped (draining, failed) one step nearer to its end, where
 * nothing holds it back:
 *
 *   leases, references > the fd store's copy > memory > a failure's names > freed
 *
 * Called when one of these is over. */
void generation_reap_later(struct generation *generation);

/* ---- expiry (unload/expiry.c) ---- */

/* How long it stays without a further use; 0: without limit, or it is in use. */
uint64_t generation_expires_in(const struct generation *generation, uint64_t now);
/* Unloads models whose keep-alive is over, and revokes the leases of generations that have drained for longer than
 * their drain timeout. Returns when it is to be called again; UINT64_MAX: not before something changes. */
uint64_t resident_expire(struct resident *resident, uint64_t now);

/* ---- idle generations (idle.c) ---- */

/* When it expires, or is revoked if it drains; 0: never, or not while it is in use. */
uint64_t idle_deadline(const struct generation *generation);
/* The first of those whose time has come, which is not among them any more; NULL: none. */
struct generation *idle_take_due(struct resident *resident, uint64_t now);
/* When that is to be called again; UINT64_MAX: not before something changes. */
uint64_t idle_next_due(const struct resident *resident);

/* Bytes of the device that will be free soon. */
uint64_t idle_freeing(const struct resident *resident, const struct device *device, uint64_t now);

/* Of model.c: what decides on it has changed, its state, settings, leases, references, last use or charge, or those of
 * one of its ranks. */
void idle_init(struct resident *resident);
void idle_add(struct generation *generation);
void idle_remove(struct generation *generation);
void idle_refresh(struct generation *generation);

/* ---- the lists and trees of generations (generation_index.c), of model.c ---- */

void generation_index_init(struct resident *resident);
/* A new generation, in its state; and one that ends. */
void generation_index_add(struct generation *generation);
void generation_index_remove(struct generation *generation);
/* Before and after a state changes. */
void generation_index_leave_state(struct generation *generation);
void generation_index_enter_state(struct generation *generation);
void generation_index_set_number(struct generation *generation, uint64_t number);
