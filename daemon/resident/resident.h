/* SPDX-License-Identifier: Apache-2.0
 *
 * What is resident: models by name and generation, their memory, and who holds it. Belongs to the
 * loop thread.
 *
 *   loading > ready > draining > gone
 *      \                 ^
 *       > failed         +-- the last name was taken away: unload, or a newer generation serves
 *
 * Drop is not release. A generation that is dropped (draining, failed) keeps its memory until the
 * last lease and the last pin are gone; then the device's thread frees it, and only then does the
 * budget get its bytes back. A failed generation stays listed, without memory, until it is unloaded,
 * replaced, or pushed out by later failures.
 *
 * A generation lies on one device. What one load brings to several devices shares a number (replicas,
 * or the ranks of a model), and so does a replica that is added later. A name leads, on each device,
 * to at most one generation that serves and one that loads. Two names may lead to one generation
 * (aliases). A name belongs to who loaded something under it first, whoever loads the next generation; a
 * generation to whose its oldest name is.
 */
#ifndef DAEMON_RESIDENT_RESIDENT_H
#define DAEMON_RESIDENT_RESIDENT_H

#include "daemon/base/buckets.h"
#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/user.h"
#include "daemon/device/device.h"
#include "daemon/resident/origin.h"
#include "daemon/source/source.h"
#include "proto/manifest.h"
#include "proto/messages.h"

#include <sys/types.h>

struct kept;

#define GENERATION_SEGMENTS MANIFEST_MAX_SEGMENTS

enum generation_state {
        GENERATION_LOADING,
        GENERATION_READY,
        GENERATION_DRAINING,
        GENERATION_FAILED,
        GENERATION_CACHED, /* in host memory, not on its device (host_cache.h) */
        GENERATION_GONE,   /* seen in its last change only */
};
const char *generation_state_name(enum generation_state state);

struct model_name {
        struct list link;    /* in generation->names */
        struct list by_name; /* in resident->by_name */
        struct generation *generation;
        struct user_charge charge; /* of a further name, to who gave it */
        uid_t owner;               /* who loaded something under it first, and may change what it leads to */
        bool booked;               /* its row is known to be in the book (keep.h) */
        char text[];
};

/* A memfd and a map of it. */
struct table {
        int fd; /* -1: none */
        void *map;
        uint64_t size;
};

void table_drop(struct table *table); /* accepts one without */

/* The manifest as a reader sees it; `table` holds one. */
struct manifest_view table_manifest(const struct table *table);

struct generation {
        struct list link; /* in resident->generations, oldest first */
        uint64_t place;   /* there: the later, the larger */
        struct resident *resident;
        uint64_t number; /* 0 until it is known to be new */
        enum generation_state state;
        struct list names;
        char *last_name; /* for display, when the names are gone */
        uint64_t names_lost;
        bool lost_name; /* in a change: that one was taken away, and others are left */
        char *source;   /* canonical */
        struct source_identity identity;
        uid_t loaded_by, last_owner; /* last_owner: of last_name */
        struct origin origin;
        struct user_charge user_charge;  /* its bytes, to who loaded it */
        struct user_charge model_charge; /* that it is there */
        unsigned priority;               /* PROTO_PRIORITY_MAX: the most; lower is evicted first */
        bool probe; /* the daemon's own (source/probe.h): nothing gives way to it, nothing of it is kept */
        bool has_identity, verified; /* verified: files matched published SHA-256 digests */

        unsigned rank, n_ranks; /* n_ranks 0: not one of several ranks */
        struct device *device;
        struct segment segments[GENERATION_SEGMENTS];
        unsigned n_segments;
        uint64_t charged; /* bytes taken from the device's budget */
        struct table manifest, arrival;

        uint64_t data_bytes, n_tensors;
        unsigned char digest[DIGEST_SIZE];
        uint64_t started_ns, load_ns;
        struct error error; /* failed */

        struct list leases;
        struct list telling; /* the server's: not all of them have been looked at since it changed last */
        uint64_t changes;
        uid_t shared_by; /* DEVICE_SHARED_WRITABLE: whose processes have had it, where was_shared */
        bool was_shared;
        unsigned n_leases;
        unsigned pins; /* work that may touch the memory: the load, a verify */
        bool releasing;

        bool pinned;               /* is never evicted, and does not expire */
        uint64_t keep_alive_ns;    /* it goes after so long without a lease; 0: never */
        uint64_t drain_timeout_ns; /* whom it replaces is unloaded by force after so long; 0: never */
        uint64_t drained_by_ns;    /* draining: it is unloaded by force then; 0: never */
        uint64_t last_used_ns;     /* load, attach, detach */
        struct host_copy *copy;    /* cached: what it holds of it; else NULL */
        bool quarantined;          /* taken from clients who still map it */
        uint64_t dropped_ns;       /* draining or failed since */
        struct work work;          /* the release */
        struct kept *kept;         /* what the service manager holds of it: until that is gone its memory is not */
        bool unkept, keep_told;    /* it could not be stored; that there is no room was logged */
        bool unchecked;            /* taken back, and its bytes have not been compared since */
};

struct resident {
        struct list generations;
        uint64_t last_place;
        struct buckets by_name; /* of struct model_name, by what their text hashes to */
        struct device **devices;
        size_t n_devices;
        uint64_t last_number;
        uint64_t failed_kept;
        struct host_cache *cache; /* NULL: none is configured */
        struct room *room;        /* who waits for memory; NULL: nobody ever does */
        /* Any change that somebody may wait for; called at most once a change, never by a query. */
        void (*changed)(struct resident *resident, struct generation *generation);
        void *context;
};

void resident_init(struct resident *resident, struct device **devices, size_t n_devices, uint64_t failed_kept);
void resident_deinit(struct resident *resident); /* every generation must be gone */
bool resident_empty(const struct resident *resident);

/* Who has the memory of a device, in words. */
void resident_holders(const struct resident *resident, const struct device *device, char *text, size_t size);

/* NULL name: the only device. NULL with *error if there is none such, or more than one. */
struct device *resident_device(struct resident *resident, const char *name, struct error *error);

/* ---- look-ups; NULL if none ---- */

struct generation *resident_ready(struct resident *resident, const char *name);
struct generation *resident_loading(struct resident *resident, const char *name); /* the newest */
struct generation *resident_failed(struct resident *resident, const char *name);
/* Serving, else loading, else failed, else draining. */
/* The newest in this state; NULL device: on any. */
struct generation *resident_on(struct resident *resident, const char *name, enum generation_state state,
                               const struct device *device);
struct generation *resident_any(struct resident *resident, const char *name);
/* Ready or loading, on this device, from exactly these files. */
struct generation *resident_same(struct resident *resident, const struct source_identity *identity,
                                 const struct device *device, const struct generation *except);
/* The number under which this name serves these files, or begins to, and which a replica on a
 * further device shares; 0 if there is none. */
uint64_t resident_shared_number(struct resident *resident, const struct source_identity *identity, const char *name);
/* Something of this number, in whatever state, is on the device. */
bool resident_holds(const struct resident *resident, uint64_t number, const struct device *device);

/* Where this name is, and others, of all generations. */
struct list *resident_bucket(struct resident *resident, const char *name);
bool generation_has_name(const struct generation *generation, const char *name);
const struct model_name *generation_find_name(const struct generation *generation, const char *name); /* or NULL */
/* Who says whose the name is: any that has it and has not failed, else the one that failed last. */
struct generation *resident_named(struct resident *resident, const char *name);
uid_t generation_owner(const struct generation *generation);
const char *generation_name(const struct generation *generation); /* the first, or the last it had */

/* ---- life ---- */

/* NULL on ENOMEM. It is loading, has one name and one pin (the load's). `owner`: see generation_add_name(). */
struct generation *generation_new(struct resident *resident, const char *name, const char *source,
                                  struct device *device, uid_t owner);
void generation_assign_number(struct generation *generation);

/* Takes `bytes` from the device's budget, or STREAMER_ENOMEM with figures and holders. */
int generation_charge(struct generation *generation, uint64_t bytes, struct error *error);
/* Gives back what was charged and is not allocated. */
void generation_uncharge(struct generation *generation);

/* Ranks stand and fall together: one is in use, pinned, or used last, where any of them is. */
bool generation_is_rank_of(const struct generation *generation, const struct generation *other); /* or the same */
/* By this name; one that is left of its ranks' names is enough for all that have any. */
bool generation_reached(const struct generation *generation, const char *name);
/* Who keeps it from being evicted: leases, and work that touches it. */
uint64_t generation_holders(const struct generation *generation);
bool generation_pinned(const struct generation *generation);
uint64_t generation_last_used(const struct generation *generation);
/* All its names go. */
void generation_drop_all(struct generation *generation);
/* Those of all its ranks that are in this state. */
void generation_drop_ranks(struct generation *generation, enum generation_state state);
/* It drains, and those who hold it are to know that it was taken from them. What they may have mapped
 * stays, in quarantine, until they are gone. */
void generation_revoke(struct generation *generation);
/* It is being used now: last_used_ns. */
void generation_used(struct generation *generation);
/* Its memory is on its way back: released, or held up for a moment by work that touches it. */
bool generation_coming_back(const struct generation *generation, uint64_t now);

/* It serves from now on; whoever served on its device under its names before drains. */
void generation_ready(struct generation *generation);
/* Takes `name` from every other generation of its device that serves or has failed under it. */
void generation_take_over(struct generation *generation, const char *name);
void generation_fail(struct generation *generation, const struct error *error);
/* Not needed after all (it was resident already): goes without a trace. */
void generation_discard(struct generation *generation);

/* Something about it changed that its own calls do not tell of (a name came to it). */
void generation_changed(struct generation *generation);

/* `owner`: of a name that nobody has, or failures alone; else it stays whose it is. Takes over what the name is
 * charged with; NULL: nothing. STREAMER_ENOMEM, and nothing is taken over. */
int generation_add_name(struct generation *generation, const char *name, uid_t owner, struct user_charge *charge);
/* Takes a name away; the last one gone, the generation drains, or goes if it had failed. */
void generation_drop_name(struct generation *generation, const char *name);

void generation_pin(struct generation *generation);
void generation_unpin(struct generation *generation);
/* After a lease or a pin ended: frees what nobody holds. May free the generation. */
void generation_settle(struct generation *generation);

#endif
