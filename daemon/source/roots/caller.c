/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/roots/caller.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc's wrappers change every thread of the process; the raw calls change the calling thread only. The file system
 * ids suffice to open files. A kernel without them (gVisor) changes the effective ids; the real uid stays root, so that
 * no other user may signal or trace the thread. */
static bool assume_ids(const struct caller *caller, struct assumed *assumed)
{
        syscall(SYS_setfsgid, caller->gid);
        syscall(SYS_setfsuid, caller->uid);
        assumed->ids = ASSUMED_FSUID;
        if ((uid_t)syscall(SYS_setfsuid, -1) == caller->uid)
                return true;
        if (syscall(SYS_setresgid, -1, caller->gid, -1) < 0)
                return false;
        assumed->ids = ASSUMED_EUID;
        return syscall(SYS_setresuid, -1, caller->uid, -1) == 0;
}

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
        *assumed = (struct assumed){.ids = ASSUMED_NOTHING};
        if (geteuid() != 0 || caller->uid == 0)
                return 0;
        if (save_groups(assumed) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (syscall(SYS_setgroups, caller->n_groups, caller->groups) < 0)
                return error_errno(error, STREAMER_EPERM, errno, "groups of uid %u", (unsigned)caller->uid);
        if (!assume_ids(caller, assumed))
                return error_set(error, STREAMER_EPERM, "could not open files as uid %u", (unsigned)caller->uid);
        return 0;
}

/* The thread serves other callers next, so it must not keep this one's ids. */
void caller_drop(struct assumed *assumed)
{
        if (assumed->ids == ASSUMED_EUID) {
                require(syscall(SYS_setresuid, -1, 0, -1) == 0);
                require(syscall(SYS_setresgid, -1, getgid(), -1) == 0);
        }
        if (assumed->ids != ASSUMED_NOTHING) {
                syscall(SYS_setfsuid, 0);
                syscall(SYS_setfsgid, getegid());
                require(syscall(SYS_setgroups, assumed->n_groups, assumed->groups) == 0);
                long fsuid = syscall(SYS_setfsuid, -1); /* -1: there is no such call, and it is the effective one */
                require(geteuid() == 0 && (fsuid == 0 || fsuid == -1));
        }
        free(assumed->groups);
        assumed->groups = NULL;
}
