/* SPDX-License-Identifier: Apache-2.0
 *
 * Files opened on a caller's behalf: a daemon that is root opens them as the caller's user, group and groups.
 */
#ifndef DAEMON_SOURCE_ROOTS_CALLER_H
#define DAEMON_SOURCE_ROOTS_CALLER_H

#include "daemon/base/error.h"

#include <stddef.h>
#include <sys/types.h>

#define CALLER_GROUPS 128

struct caller {
        uid_t uid;
        gid_t gid;
        gid_t groups[CALLER_GROUPS];
        size_t n_groups;
};

enum assumed { ASSUMED_NOTHING, ASSUMED_FSUID, ASSUMED_EUID };

/* Changes the ids of this thread alone, where the daemon is root and the caller is not. STREAMER_EPERM. */
int caller_assume(const struct caller *caller, enum assumed *assumed, struct error *error);
/* To be called whatever caller_assume() returned. Aborts if the thread would keep the caller's ids. */
void caller_drop(enum assumed assumed);

#endif
