/* SPDX-License-Identifier: Apache-2.0
 *
 * One model of `preload` on its way: between preload.c (what becomes of it) and preload_look.c (what is
 * told of it); private to these two.
 */
#ifndef DAEMON_SERVE_PRELOAD_ITEM_H
#define DAEMON_SERVE_PRELOAD_ITEM_H

#include "daemon/base/shown.h"
#include "daemon/serve/preload.h"

enum item_state { ITEM_WAITING, ITEM_LOOKING, ITEM_LOADING, ITEM_READY, ITEM_FAILED };

struct item {
        struct list link; /* in preload->items, by priority, then by place; alone: not wanted any more */
        uint64_t place;   /* among those of its priority, ascending */
        struct preload *preload;
        struct preload_entry entry;
        char *name; /* under which it will be there */
        bool pin;
        unsigned priority;
        enum item_state state;
        unsigned tries;
        bool hopeless; /* trying again would not help, or is not wanted */
        uint64_t due_ns;
        struct error error; /* of the last try */
        /* Devices that it has not reached, where others have it; none: all of the entry's. */
        const char *left[LOAD_DEVICES];
        size_t n_left;
        /* On which nobody wants it any more. */
        const struct device *gone[LOAD_DEVICES];
        size_t n_gone;
        struct work work; /* the Hub's look-up */
        char *path;
        struct load_watch watch;
};

/* What logs and `systemctl status` call it. */
void item_title(char out[SHOWN_SOURCE], const struct item *item);

#endif
