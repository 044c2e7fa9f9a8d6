/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that are to be resident and may not be yet: those of `preload`, and those that were pinned when
 * the daemon last ended. They have a name from the first moment on: clients see them, wait for them and
 * change them before anything of them is loaded.
 *
 *   queued (not begun) > [a load: the generation tells] > there
 *      ^                        |
 *      +--- failed <------------+    tried again, or not
 */
#ifndef DAEMON_SERVE_WANTED_H
#define DAEMON_SERVE_WANTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct server;

struct wanted {
        const char *name, *source;
        uid_t uid; /* for whom */
        unsigned priority, tries;
        bool pinned, failed;
        const char *error; /* failed: why */
        int code;
        uint64_t retry_at_ns; /* failed: when; 0: it is not tried again */
};

/* False: nobody wants a model of this name, or it is there. */
bool wanted_find(const struct server *server, const char *name, struct wanted *wanted);
/* All, in the order in which wanted_find() looks: a name may come twice, and the first is the one that counts. As
 * many as wanted_count() says, which is at the least what it answers. */
size_t wanted_collect(const struct server *server, struct wanted *all);
size_t wanted_count(const struct server *server);

/* It is not wanted any more, on this device (NULL: on any). False: it was not. */
bool wanted_forget(struct server *server, const char *name, const char *device);
bool wanted_pin(struct server *server, const char *name, bool pin);
bool wanted_set_priority(struct server *server, const char *name, unsigned priority);

#endif
