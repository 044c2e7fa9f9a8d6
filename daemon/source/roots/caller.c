/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/roots/caller.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The groups of this thread: a daemon may have been started with some. */
static int save_groups(struct assumed *assumed)
{
        int n = getgroups(0, NULL);
        gid_t *groups = n >= 0 ? malloc(((size_t)n + 1) * sizeof(*groups)) : NULL;
        if (groups == NULL)
                return -1;
        n = getgroups(n, groups);
        if (n < 0) {
                free(groups);
                return -1;
        }
        assumed->groups = groups;
        assumed->n_groups = (size_t)n;
        return 0;
}

int caller_assume(const struct caller *caller, struct assumed *assumed, struct error *error)
{
        *assumed = (struct assumed){.ids = THREAD_IDS_OWN};
        if (geteuid() != 0 || caller->uid == 0)
                return 0;
        if (save_groups(assumed) < 0)
                return error_no_memory(error);
        if (syscall(SYS_setgroups, caller->n_groups, caller->groups) < 0)
                return error_errno(error, STREAMER_EPERM, errno, "groups of uid %u", (unsigned)caller->uid);
        if (!thread_ids_assume(caller->uid, caller->gid, &assumed->ids))
                return error_set(error, STREAMER_EPERM, "could not open files as uid %u", (unsigned)caller->uid);
        return 0;
}

/* The thread serves other callers next, so it must not keep this one's ids. */
void caller_drop(struct assumed *assumed)
{
        if (assumed->ids != THREAD_IDS_OWN) {
                thread_ids_drop(assumed->ids);
                require(syscall(SYS_setgroups, assumed->n_groups, assumed->groups) == 0);
        }
        free(assumed->groups);
        assumed->groups = NULL;
}
