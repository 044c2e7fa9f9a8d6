/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the identity of sources as they are now, on workers: their files are opened, and none is read.
 */
#ifndef DAEMON_PUBLISH_BASE_CHECK_H
#define DAEMON_PUBLISH_BASE_CHECK_H

#include "daemon/base/thread/work.h"
#include "daemon/source/roots/caller.h"
#include "daemon/source/source.h"

/* One source. */
struct base_probe {
        char *source; /* canonical; NULL: none, and nothing is checked */
        struct caller caller;
        struct source_roots *roots; /* a reference; NULL: the daemon's own */
        uint64_t lane;
        struct source_identity identity;
        struct error error;
};

enum { BASE_WANTED, BASE_RECORDED, BASE_PROBES };

struct base_check {
        struct work work;
        struct work_pool *pool;
        const struct sources *sources;
        struct base_probe probes[BASE_PROBES];
        size_t at;
        bool given_up; /* atomic: the result is not needed; requests to servers may end early */
        void (*done)(struct base_check *check);
        /* On the loop, between its steps: false where the result is not needed; then it is done at once. */
        bool (*wanted)(const struct base_check *check);
        void *context;
};

struct base_check *base_check_new(struct work_pool *pool, const struct sources *sources); /* NULL on ENOMEM */
struct base_check *base_check_free(struct base_check *check); /* accepts NULL; not in flight */
/* STREAMER_ENOMEM. */
int base_check_add(struct base_check *check, size_t probe, const char *source, const struct caller *caller,
                   struct source_roots *roots);
/* done() is called once, later. */
void base_check_start(struct base_check *check, void (*done)(struct base_check *),
                      bool (*wanted)(const struct base_check *), void *context);

#endif
