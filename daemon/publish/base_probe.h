/* SPDX-License-Identifier: Apache-2.0
 *
 * The identity of a source as it is now: a worker opens its files, and reads none.
 */
#ifndef DAEMON_PUBLISH_BASE_PROBE_H
#define DAEMON_PUBLISH_BASE_PROBE_H

#include "daemon/source/roots/caller.h"
#include "daemon/source/source.h"

struct base_probe {
        char *source; /* canonical; NULL: none, and there is nothing to do */
        struct caller caller;
        struct source_roots *roots; /* a reference; NULL: the daemon's own */
        struct source_identity identity;
        struct error error;
};

/* STREAMER_ENOMEM. To be deinited in any case. */
int base_probe_init(struct base_probe *probe, const char *source, const struct caller *caller,
                    struct source_roots *roots);
void base_probe_deinit(struct base_probe *probe); /* accepts a zeroed one, and zeroes it */
/* On a worker, in the lane of the source; again for what it is then. */
void base_probe_run(struct base_probe *probe, const struct sources *sources);

#endif
