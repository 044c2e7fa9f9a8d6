/* SPDX-License-Identifier: Apache-2.0
 *
 * The file system ids suffice. A kernel without them (gVisor) changes the effective ids; the real uid stays root, so
 * that no other user may signal or trace the thread. glibc's wrappers change every thread of the process; the raw calls
 * change the calling thread only.
 */
#include "daemon/source/roots/caller.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <sys/syscall.h>

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

int caller_assume(const struct caller *caller, struct assumed *assumed, struct error *error)
{
        *assumed = (struct assumed){.ids = IDS_OWN};
        if (geteuid() != 0 || caller->uid == 0)
                return 0;
        if (save_groups(assumed) < 0)
                return error_no_memory(error);
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
