/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that are to be there again after a start: those that were pinned and have not been taken
 * back, or were and proved to be damaged. Loaded in order of priority; one that fails is tried again, after 1 s, 2 s, 4
 * s and so on up to five minutes, until it is there or nobody wants it any more: pinned is what the operator said.
 *
 *   wanted > loading > ready, or there by another's doing, or cancelled, unpinned, unloaded
 *       ^------/ failed
 */
#ifndef DAEMON_SERVE_AGAIN_H
#define DAEMON_SERVE_AGAIN_H

#include "daemon/load/load.h"
#include "daemon/resident/state.h"
#include "daemon/serve/wanted.h"

struct again_model;

struct again {
        struct loads *loads;
        struct resident *resident;
        struct state state; /* what was read; models leave it when they are settled */
        struct again_model **models;
        size_t n;
        struct again_model **by_index; /* in the state; NULL: settled */
        /* Which roots it is opened below, and whom it is charged to: in the request; or that its user may
         * not load it any more. NULL: anybody may anything. */
        int (*allow)(struct again *again, struct load_request *request, struct user_limits *limits,
                     struct error *error);
        void (*changed)(struct again *again); /* something has become of one that no generation tells of; or NULL */
};

/* What the state file of `folder` (NULL: none) says. Before the loop runs, after models were taken
 * back; may block. */
void again_init(struct again *again, struct loads *loads, struct resident *resident, const char *folder);
void again_deinit(struct again *again);
/* About once a second: begins what is due. */
void again_tick(struct again *again, uint64_t now);
/* Of models that are still wanted. */
size_t again_left(const struct again *again);
void again_wanted(const struct again *again, size_t i, struct wanted *wanted); /* i < again_left() */
/* The first whose number is `from` or more: its number; SIZE_MAX: there is none. Numbers do not change. */
size_t again_next(const struct again *again, size_t from, struct wanted *wanted);
bool again_find(const struct again *again, const char *name, struct wanted *wanted);
/* A generation that goes is wanted again under this name, on its device. */
void again_add(struct again *again, const struct generation *generation, const char *name);
/* By its name. On one of its devices; NULL: on all. False: it was not wanted there. */
bool again_forget(struct again *again, const char *name, const char *device);
bool again_set_priority(struct again *again, const char *name, unsigned priority);
/* The daemon ends. */
void again_stop(struct again *again);

#endif
