/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that were taken back serve at once; whether their bytes are still those that were loaded is
 * checked beside that, one model after the other. One that differs serves nobody any more: its names
 * are failed models that say why, and its memory goes with its last lease. One that was pinned is wanted
 * again.
 */
#ifndef DAEMON_SERVE_RECHECK_H
#define DAEMON_SERVE_RECHECK_H

#include "daemon/load/verify.h"

struct recheck {
        struct resident *resident;
        struct reader *reader;
        struct work_pool *pool;
        struct verify verify;
        bool due, busy, stopped;
        /* A name that was pinned is about to lose this generation, which is damaged; or NULL. */
        void (*lost)(struct recheck *recheck, const struct generation *generation, const char *name);
};

void recheck_init(struct recheck *recheck, struct resident *resident, struct reader *reader, struct work_pool *pool);
/* A few times a second: begins with the next. */
void recheck_tick(struct recheck *recheck);
void recheck_stop(struct recheck *recheck);

#endif
