/* SPDX-License-Identifier: Apache-2.0
 *
 * Desired models: the models that the daemon loads without a request, and the reconciler that loads them.
 *
 * A model is desired because the configuration lists it (`preload`), or because it was pinned when the daemon last
 * ended and is not in the fd store, or is damaged there. Clients see it by its name, wait for it and change it before
 * anything of it is loaded.
 *
 *   WAITING > [RESOLVING a Hub id, on a worker] > LOADING > READY    on all of its devices
 *      ^                                             |
 *      +---- the attempt failed, or not everywhere --+
 *      |                                             |
 *      +---- a reload ------------- GIVEN_UP < ------+               a permanent error
 *      +---- a reload ------------- CANCELLED < - from each before READY, by a client
 *
 *   READY > WAITING     evicted, or damaged, on some of its devices
 *   READY > UNLOADED    by a client, since it has expired, or as its name was given to another and lost
 *   RESOLVING > REMOVED from the configuration: freed when the worker returns
 *
 * A tick starts the attempts that are due, until a number of them is under way, and at least one restored model, so
 * that a source that hangs delays the others and does not stop them; restored ones before configured ones, then by
 * priority. When an attempt ends, the next one of its kind begins at once; of restored models only while no other load
 * runs. One retry policy applies to both: storage recovers and memory is freed, so an attempt that fails is repeated
 * after a pause that doubles up to five minutes. An invalid or unsupported request is not repeated before the next
 * reload. An attempt that a limit on concurrent loads refuses does not count.
 *
 * Replicas that fail alone are retried alone. A configured model evicts nothing. One that was READY and is evicted is
 * missing, and is retried as after a failed attempt; one that is unloaded is not desired any more: an operator's
 * decision is no failure, and readiness must not wait for it. A restored model leaves the list instead of becoming
 * READY, or when a client unpins, unloads or cancels it; as long as it is in the list, the snapshots contain it.
 */
#pragma once

#include "daemon/base/text/secret.h"
#include "daemon/base/tree.h"
#include "daemon/load/load.h"
#include "daemon/resident/persist/persist.h"
#include "daemon/serve/desired/model_record.h"
#include "daemon/serve/limits.h"

enum desired_state {
        DESIRED_WAITING, /* for its next attempt; with an error, the last one failed */
        DESIRED_RESOLVING,
        DESIRED_LOADING,
        DESIRED_READY,
        DESIRED_GIVEN_UP,
        DESIRED_CANCELLED, /* by a client: not desired before the next reload */
        DESIRED_UNLOADED,  /* it was READY, and is not desired any more */
        DESIRED_REMOVED,
        DESIRED_STATES,
};

enum desired_origin { DESIRED_RESTORED, DESIRED_CONFIGURED, DESIRED_ORIGINS };

/* Restored models that are loaded at once, beside those that a tick begins nevertheless. */
#define DESIRED_RESTORED_AT_ONCE 32

/* Read-only for other modules. */
struct desired_model {
        struct tree_node in_order; /* in desired->models, by origin, priority and sequence */
        struct tree_node by_name;  /* in desired->by_name: by name, then in that order */
        struct tree_node in_queue; /* WAITING: in desired->due, or ->later */
        struct list link;          /* of those of the configuration before, while the next one is set */
        struct list in_check;      /* in desired->to_check */
        uint64_t sequence;         /* ascending */
        struct desired *desired;
        enum desired_origin origin;
        enum desired_state state;
        struct model_record spec;         /* the load, and where it is still desired (`pinned`) */
        const struct model_record *entry; /* configured: of the list, borrowed */
        bool named;                       /* the name is given, not derived from the source */
        bool served;                      /* an attempt reached some of its devices */
        bool evicted;                     /* it was READY, and is missing where it is still desired */
        uint64_t checked_ns;              /* READY: what ended until then is known */
        unsigned attempts;
        uint64_t retry_at_ns; /* WAITING: the next attempt, 0: now; else 0 */
        struct error error;   /* of the last attempt; a worker's while RESOLVING */
        struct load_watch watch;
        struct work work; /* RESOLVING */
        char *path;       /* of the resolved Hub id */
};

struct desired {
        struct loads *loads;
        const struct limits *limits; /* preload_loads, preload_retry_ns */
        struct tree models, by_name;
        size_t n_in_state[DESIRED_ORIGINS][DESIRED_STATES]; /* of these */
        /* Those that wait: whose time has come, in the order of models; and the others, by the time of their attempt.
         */
        struct tree due[DESIRED_ORIGINS], later;
        unsigned ended[DESIRED_ORIGINS]; /* attempts, since the last of start_next */
        struct callback start_next;      /* begins as many */
        uint64_t last_sequence;
        uint64_t n_changes;    /* of the list, and of pins */
        struct list to_check;  /* configured models: what is resident under their names may have changed */
        struct callback check; /* finds those of them that are READY here but not resident any more */
        bool closing;          /* atomic: desired_close() */
        /* Sets the roots and the limits of a restored model's request, or fails: its user may not load it any more.
         * NULL: no restrictions. */
        int (*allow)(struct desired *desired, struct load_args *request, struct quota_limits *limits,
                     struct error *error);
        /* A change of the model of this name, without an event of a generation. May be NULL. */
        void (*changed)(struct desired *desired, const char *name);
        /* The row of a restored model's name on the device of this UUID may have changed. May be NULL. */
        void (*row_due)(struct desired *desired, const char *name, const char *device);
};

void desired_init(struct desired *desired, struct loads *loads, const struct limits *limits);
void desired_deinit(struct desired *desired);

/* Sets the configured models, the entries of `preload`: records of what each names, with the devices' names as UUIDs.
 * They are borrowed until the next call has returned. Entries that were in the list continue; models of other entries
 * stay resident. STREAMER_ENOMEM. */
int desired_configure(struct desired *desired, const struct model_record *entries, size_t n, struct error *error);
/* Adds the pinned models of an earlier run that are not resident, and logs those that cannot be loaded again. Sorts the
 * rows. Before the loop runs, after models were restored from the fd store. */
void desired_restore(struct desired *desired, struct snapshot *snapshot);
/* A restored generation of this name is damaged and about to be unloaded: the name is desired again on its device. */
void desired_add(struct desired *desired, const struct generation *generation, const char *name);
/* What persist asks for (persist.h): row_due() for each name and device that is to be restored; the row of one, unless
 * there is none. */
void desired_mark(const struct desired *desired);
bool desired_row(const struct desired *desired, const char *name, const char *device, struct name_row *row);

/* What is resident under the name has changed: on a later turn of the loop configured models that were ready are
 * compared with it, and restored ones that wait and are served by it (`ready`) are settled. */
void desired_name_changed(struct desired *desired, const char *name, bool ready);
/* Returns when it is to be called again; UINT64_MAX: not before something changes. */
uint64_t desired_tick(struct desired *desired, uint64_t now);
/* The daemon ends, and no tick follows: attempts in progress have no effect. */
void desired_close(struct desired *desired);

/* ---- queries ---- */

/* The first of this name that is to be loaded, or was cancelled; NULL: none. */
const char *desired_state_name(const struct desired_model *model); /* waiting, loading, ready, failed or unloaded */
const struct desired_model *desired_find(const struct desired *desired, const char *name);
/* Likewise in the order of names: the first from this name on, and the next one. */
const struct desired_model *desired_from(const struct desired *desired, const char *name);
const struct desired_model *desired_next(const struct desired_model *model);
/* Of its load, and in the list; an entry without one asks for none. */
unsigned desired_priority(const struct desired_model *model);
/* Sets the priority and the keep-alive of a name that a restored model waits for on this device; none waits: nothing.
 */
void desired_settings(const struct desired *desired, const char *name, const struct device *device,
                      struct model_settings *settings);
/* All, by origin, then by falling priority, then by sequence: those that follow a place in this order. */
#define desired_each(m, desired) tree_each_item(const struct desired_model, m, &(desired)->models, in_order)
const struct desired_model *desired_after(const struct desired *desired, enum desired_origin origin, unsigned priority,
                                          uint64_t sequence);
#define desired_each_from(m, first)                                                                                    \
        for (const struct desired_model *m = (first); m != NULL;                                                       \
             m = tree_item(tree_next(&m->in_order), const struct desired_model, in_order))
/* Whether a client has cancelled or unloaded it: it is not desired, and nothing misses it. */
bool desired_dismissed(const struct desired_model *model);
/* How many are desired of this origin, and whether any of them is not READY. */
size_t desired_count(const struct desired *desired, enum desired_origin origin);
bool desired_pending(const struct desired *desired, enum desired_origin origin);
bool desired_failed(const struct desired_model *model);
/* For logs: the name if it was given, else the redacted source. */
void desired_title(char out[REDACTED_SOURCE], const struct desired_model *model);

/* ---- requests of clients, for all models of this name that desired_find() finds; false: none ---- */

/* Gives the model up on this device (NULL: on all), a configured one until the next reload. A load in progress
 * continues. */
bool desired_forget(struct desired *desired, const char *name, const char *device);
bool desired_pin(struct desired *desired, const char *name, bool pin);
bool desired_set_keep_alive(struct desired *desired, const char *name, uint64_t keep_alive_ns);
bool desired_set_priority(struct desired *desired, const char *name, unsigned priority);
