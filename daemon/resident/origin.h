/* SPDX-License-Identifier: Apache-2.0
 *
 * On whose behalf a model was loaded, and how its files were told apart: what a load of it in a later
 * run needs, so that nothing is opened then which its user could not open now.
 */
#ifndef DAEMON_RESIDENT_ORIGIN_H
#define DAEMON_RESIDENT_ORIGIN_H

#include "proto/codec.h"

#include <sys/types.h>

#define ORIGIN_GROUPS 128

struct origin {
        uid_t uid;
        gid_t gid;
        gid_t *groups;
        size_t n_groups;
        char *pattern; /* of the files of ranks; NULL: replicas */
};

/* 0 or STREAMER_ENOMEM. */
int origin_init(struct origin *origin, uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups, const char *pattern);
void origin_deinit(struct origin *origin); /* accepts a zeroed one */

/* As one value of a message, and back: -1 where it does not hold together. */
void origin_write(struct writer *w, const struct origin *origin);
int origin_read(struct origin *origin, const msgpack_object *o);

#endif
