/* SPDX-License-Identifier: Apache-2.0
 *
 * Files opened on a caller's behalf: a daemon that is root opens them as the caller's user, group and groups.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

#define CALLER_GROUPS 128

struct caller {
        uid_t uid;
        gid_t gid;
        gid_t groups[CALLER_GROUPS];
        size_t n_groups;
};

/* What caller_assume() has changed, and the thread's own groups. */
struct assumed {
        enum { IDS_OWN, IDS_FILE_SYSTEM, IDS_EFFECTIVE } ids;
        gid_t *groups; /* NULL: they are unchanged */
        size_t n_groups;
};

/* Its files are opened with other rights than the daemon's own. */
bool caller_is_other(const struct caller *caller);
/* Changes the ids of this thread alone, where the daemon is root and the caller is not. STREAMER_EPERM, _ENOMEM. */
int caller_assume(const struct caller *caller, struct assumed *assumed, struct error *error);
/* To be called whatever caller_assume() returned. Aborts if the thread would keep the caller's ids or groups. */
void caller_drop(struct assumed *assumed);
