/* SPDX-License-Identifier: Apache-2.0
 *
 * The file system ids suffice. A kernel without them (gVisor) changes the effective ids; the real uid stays root, so
 * that no other user may signal or trace the thread. glibc's wrappers change every thread of the process; the raw calls
 * change the calling thread only.
 */
#include "daemon/source/roots/caller.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <limits.h>
#include <sys/syscall.h>

static bool assume_ids(struct assumed *assumed, uid_t uid, gid_t gid)
{
        syscall(SYS_setfsgid, gid);
        syscall(SYS_setfsuid, uid);
        assumed->ids = IDS_FILE_SYSTEM;
        if ((uid_t)syscall(SYS_setfsuid, -1) == uid)
                return true;
        if (syscall(SYS_setresgid, -1, gid, -1) < 0)
                return false;
        assumed->ids = IDS_EFFECTIVE;
        return syscall(SYS_setresuid, -1, uid, -1) == 0;
}

bool caller_is_other(const struct caller *caller)
{
        return geteuid() == 0 && caller->uid != 0;
}

int caller_assume(const struct caller *caller, struct assumed *assumed, struct error *error)
{
        *assumed = (struct assumed){.ids = IDS_OWN};
        if (!caller_is_other(caller))
                return 0;
        /* The groups of this thread: a daemon may have been started with some. */
        assumed->groups = malloc(NGROUPS_MAX * sizeof(*assumed->groups));
        if (assumed->groups == NULL)
                return error_no_memory(error);
        int n = getgroups(NGROUPS_MAX, assumed->groups);
        require(n >= 0); /* no thread has more */
        assumed->n_groups = (size_t)n;
        if (syscall(SYS_setgroups, caller->n_groups, caller->groups) < 0)
                return error_errno(error, STREAMER_EPERM, errno, "groups of uid %u", (unsigned)caller->uid);
        if (!assume_ids(assumed, caller->uid, caller->gid))
                return error_set(error, STREAMER_EPERM, "could not open files as uid %u", (unsigned)caller->uid);
        return 0;
}

/* The thread serves other callers next, so it must not keep this one's ids. */
void caller_drop(struct assumed *assumed)
{
        if (assumed->ids == IDS_EFFECTIVE) {
                require(syscall(SYS_setresuid, -1, 0, -1) == 0);
                require(syscall(SYS_setresgid, -1, getgid(), -1) == 0);
        }
        if (assumed->ids != IDS_OWN) {
                syscall(SYS_setfsuid, 0);
                syscall(SYS_setfsgid, getegid());
                long fsuid = syscall(SYS_setfsuid, -1); /* -1: there is no such call, and it is the effective one */
                require(geteuid() == 0 && (fsuid == 0 || fsuid == -1));
                require(syscall(SYS_setgroups, assumed->n_groups, assumed->groups) == 0);
        }
        free(assumed->groups);
        assumed->groups = NULL;
}
