/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the state file in step with what is resident, from the loop, by a worker: looked at a few
 * times a second, written where it would be another, one write at a time.
 */
#ifndef DAEMON_RESIDENT_REMEMBER_H
#define DAEMON_RESIDENT_REMEMBER_H

#include "daemon/resident/state.h"

#define LANE_STATE 2 /* of the work pool: one file system, ours alone */

struct remember {
        struct resident *resident;
        struct work_pool *pool;
        const char *folder;       /* NULL: nothing is remembered */
        const struct state *also; /* models that are still to be loaded again */
        bool due, writing, frozen, told;
        /* The file's bytes: as it is, as it is being written, and as it is to be at the end. */
        msgpack_sbuffer written, next, last;
        struct work work;
        struct error error;
};

/* `folder` and `also` are borrowed. */
void remember_init(struct remember *remember, struct resident *resident, struct work_pool *pool, const char *folder,
                   const struct state *also);
void remember_deinit(struct remember *remember);
void remember_changed(struct remember *remember);
void remember_tick(struct remember *remember);
/* The daemon ends: what is known now is written, and what goes from now on is not forgotten. */
void remember_freeze(struct remember *remember);
bool remember_idle(const struct remember *remember);

#endif
