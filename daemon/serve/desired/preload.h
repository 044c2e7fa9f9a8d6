/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration's list `preload`: the models that the daemon loads when it starts.
 */
#ifndef DAEMON_SERVE_DESIRED_PRELOAD_H
#define DAEMON_SERVE_DESIRED_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct preload_entry {
        char *source;   /* as a load's, or org/name[@rev] in the cache of the daemon's own environment */
        char *name;     /* NULL: from the source */
        char **devices; /* none: the only device */
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

void preload_entry_deinit(struct preload_entry *entry); /* accepts a zeroed one */
void preload_list_deinit(struct preload_list *list);    /* accepts a zeroed one */
bool preload_entry_equal(const struct preload_entry *a, const struct preload_entry *b);

#endif
