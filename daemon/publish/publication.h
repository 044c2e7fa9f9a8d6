/* SPDX-License-Identifier: Apache-2.0
 *
 * A publication: a client that makes a model in the daemon's memory. Owned by the loop thread.
 *
 *   claimed > admitting > filling > (admitting) > allocating > filling
 *      |          |          |\
 *      |          |          | > sealing > charging > hashing > published
 *      |          |          |      |         |          |
 *      +----------+----------+------+---------+----------+--> failed
 *
 * The generation is loading until it is published: its memory is charged and listed, and nobody can attach to it. The
 * client's lease of it is made when it is admitted (by the caller), so the memory of a publication that failed is freed
 * when no process maps it.
 *
 * The end of the client's connection fails a publication that has not begun to commit; later it is completed.
 */
#pragma once

#include "daemon/load/load.h"
#include "daemon/resident/digest_check.h"

enum publication_state {
        PUBLICATION_CLAIMED,    /* no other client may publish under this name on this device */
        PUBLICATION_ADMITTING,  /* a generation exists, and its bytes are asked for (admission.h); or more of them */
        PUBLICATION_FILLING,    /* the client writes to the segments that it has */
        PUBLICATION_ALLOCATING, /* a further segment, on the device's thread */
        PUBLICATION_SEALING,    /* workers: the base has not changed, no process may write, and the table is valid */
        PUBLICATION_CHARGING,   /* bytes of the manifest are asked for */
        PUBLICATION_HASHING,    /* workers: every storage and the table */
        PUBLICATION_PUBLISHED,  /* this and the following: ended */
        PUBLICATION_FAILED,
};

/* The identity of a source as it is now: a worker opens its files, and reads none. */
struct base_probe {
        char *source; /* canonical; NULL: none, and there is nothing to do */
        struct caller caller;
        struct source_roots *roots; /* a reference; NULL: the daemon's own */
        struct source_identity identity;
        bool has_answers;
        unsigned char answers[DIGEST_SIZE]; /* of a source with a URL (source_answers) */
        struct error error;
};
/* STREAMER_ENOMEM. To be deinited in any case. */
int base_probe_init(struct base_probe *probe, const char *source, const struct caller *caller,
                    struct source_roots *roots);
void base_probe_deinit(struct base_probe *probe); /* accepts a zeroed one, and zeroes it */
/* On a worker, in the lane of the source; again for what it is then. */
void base_probe_run(struct base_probe *probe, const struct sources *sources);

struct publication;

/* The publications of a daemon. */
struct publications {
        struct list all;        /* that have not ended */
        struct buckets by_name; /* of these */
        struct loads *loads;    /* whose sources, memory and workers they share */
        struct quotas *users;
        unsigned hashers; /* workers that hash one model: up to PUBLICATION_HASHERS */
        uint64_t keep;    /* generations of a name, made as tensors, that are in memory at once: at least 2 */
        uint64_t last_id;
        /* A claim has ended. */
        void (*ended)(const struct publication *publication);
};

/* Called once for each request below, never from within it. Code 0: done. */
typedef void publication_done_fn(struct publication *publication, const struct error *error, void *context);

#define PUBLICATION_HASHERS 4

struct hasher {
        struct work work;
        struct publication *publication;
        bool more; /* storages are left */
        struct error error;
};

struct publication {
        struct list link;       /* in publications->all, until it has ended */
        struct list by_name;    /* likewise */
        struct list in_session; /* of the client that has it; unlinked: its connection has ended */
        struct publications *publications;
        uint64_t id;
        enum publication_state state;
        pid_t pid; /* of the client; 0: in another PID namespace */
        struct caller caller;
        char *name;
        struct device *device;
        struct published *published;   /* the generation's, once that exists */
        struct encryption *encryption; /* of its base, a reference; NULL: it is not encrypted, or not known */
        struct base_probe base;        /* of published->base, before it is sealed */
        uint64_t user;                 /* whose share of the workers it uses; 0: unlimited */
        struct quota_charge claim;     /* until it has ended */
        struct generation *generation;
        uint64_t bytes;             /* of segments, that were granted */
        struct admission_part part; /* these, then those of the manifest */
        struct admission_request admission;
        struct quota_limits limits; /* of the last request */
        uint64_t since_ns;

        publication_done_fn *done; /* of the request that is under way; NULL: none */
        void *context;
        unsigned in_flight; /* steps */
        struct work work;
        struct error error;

        struct published_storage table; /* committing: where the client's table is */
        struct table manifest;
        struct digest_job hash;
        unsigned n_hashing;     /* atomic: of the hashers, those whose work has not ended */
        bool stop;              /* atomic: it was aborted, and workers end soon */
        struct hasher *hashers; /* while it is hashed */
};

/* After its owner has set the daemon's parts and `ended`. */
void publications_init(struct publications *publications);
/* NULL if no process publishes under this name on this device; device NULL: on any. */
struct publication *publications_find(struct publications *publications, const char *name, const struct device *device);
/* Claims a name that is not claimed, for the user, to whom the claim is charged. The caller sets what is published.
 * NULL on ENOMEM. */
struct publication *publication_new(struct publications *publications, const char *name, struct device *device,
                                    const struct caller *caller);

/* ---- requests: 0, or an error and done() is not called. One at a time. ---- */

/* Whether a model of this name may be published on the device: STREAMER_EBUSY where one that was loaded serves. */
int publication_check_name(struct resident *resident, const char *name, const struct device *device,
                           struct error *error);
/* Charges the client's user, and asks for memory. `as_tensors`: see published.h; STREAMER_ELIMIT where as many
 * generations of the name as are kept would remain in memory beside it. */
int publication_begin(struct publication *publication, uint64_t bytes, bool as_tensors,
                      const struct model_settings *settings, const struct quota_limits *limits,
                      publication_done_fn *done, void *context, struct error *error);
/* A segment of at least so many bytes: the generation's last one, when it is done. What exceeds the bytes that it began
 * with is charged and asked for. */
int publication_add_segment(struct publication *publication, uint64_t bytes, const struct quota_limits *limits,
                            publication_done_fn *done, void *context, struct error *error);
/* The publication has ended when it is done. */
int publication_commit(struct publication *publication, const struct published_storage *table,
                       const struct quota_limits *limits, publication_done_fn *done, void *context,
                       struct error *error);

/* A request that is under way is answered with the error. May free it. */
void publication_abort(struct publication *publication, const struct error *error);
/* Aborts those of this name that have begun, on all devices. False: there is none. */
bool publications_cancel(struct publications *publications, const char *name);
/* Its client's connection has ended: aborted, unless it is being committed. */
void publication_abandon(struct publication *publication);
/* The daemon ends: all are aborted. */
void publications_stop(struct publications *publications);
