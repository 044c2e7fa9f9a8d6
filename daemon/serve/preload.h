/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that the settings want resident: loaded at start, in order of priority, a few at a time.
 *
 *   waiting > [looking up the Hub id] > loading > ready
 *      ^                                   |
 *      +------ failed: after a while <-----+
 *
 * A failure is tried again, later each time: storage comes back, room is made. Only what the settings
 * themselves have wrong stays failed. Nothing is evicted for a preload, and clients' loads come in
 * beside them. Who is ready is done with: a model that is unloaded afterwards stays so.
 */
#ifndef DAEMON_SERVE_PRELOAD_H
#define DAEMON_SERVE_PRELOAD_H

#include "daemon/load/load.h"
#include "daemon/serve/wanted.h"
#include "proto/codec.h"

/* One entry of `preload`. */
struct preload_entry {
        char *source;   /* as a load's, or org/name[@rev] in the cache of the daemon's own environment */
        char *name;     /* NULL: from the source */
        char **devices; /* none: the only one there is */
        size_t n_devices;
        char *pattern; /* NULL: replicas */
        bool rank, sha256, pin;
        unsigned priority;      /* 0: the default */
        uint64_t keep_alive_ns; /* 0: the default */
};

struct preload_list {
        struct preload_entry *v;
        size_t n;
};
void preload_list_deinit(struct preload_list *list); /* accepts a zeroed one */
bool preload_entry_equal(const struct preload_entry *a, const struct preload_entry *b);

struct preload_opts {
        unsigned at_once;  /* that load */
        uint64_t retry_ns; /* after the first failure; twice as long after each further one, to a cap */
};

struct preload {
        struct loads *loads;
        struct work_pool *pool;
        struct preload_opts opts;
        struct list items;
        uint64_t n_unready, last_place;
        bool closing;
        /* Something has become of one that no generation tells of; may be NULL. */
        void (*changed)(struct preload *preload);
};

void preload_init(struct preload *preload, struct loads *loads, struct work_pool *pool);
void preload_deinit(struct preload *preload);

/* These are wanted from now on. Those that were wanted before go on as they were; what is not wanted
 * any more is left as it is. Takes the entries over. STREAMER_ENOMEM. */
int preload_set_consume(struct preload *preload, struct preload_list *list, const struct preload_opts *opts,
                        struct error *error);

/* A few times a second: begins what is due. */
void preload_tick(struct preload *preload, uint64_t now);
/* Nothing new is begun. */
void preload_close(struct preload *preload);

/* ---- those that are not there yet, by the name that they will have ---- */

bool preload_find(const struct preload *preload, const char *name, struct wanted *wanted);
/* All, in their order: n_unready of them. */
size_t preload_collect(const struct preload *preload, struct wanted *all);
/* False: none of this name is wanted. It is not tried again until the next reload. */
bool preload_give_up(struct preload *preload, const char *name);
/* On this device alone. */
bool preload_give_up_on(struct preload *preload, const char *name, const struct device *device);
bool preload_pin(struct preload *preload, const char *name, bool pin);
bool preload_set_priority(struct preload *preload, const char *name, unsigned priority);

struct preload_summary {
        size_t n, ready, failed; /* in all; of them; of them, whether they are tried again or not */
        char title[256];         /* of the first that failed */
};
void preload_summarize(const struct preload *preload, struct preload_summary *summary);

/* Rows of "preload" in `status`. */
struct preload_row {
        const struct item *item;
        unsigned priority; /* where it stands: the highest first, then by place */
        uint64_t place;
};
/* The first of those behind `row`, which becomes it; false: there are none. */
bool preload_next(const struct preload *preload, struct preload_row *row);
void preload_write(struct writer *writer, const struct preload_row *row, uint64_t now);

#endif
