/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/roots/caller.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <grp.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>

/* glibc's wrappers change every thread of the process; the raw calls change the calling thread only. The file system
 * ids suffice to open files. A kernel without them (gVisor) changes the effective ids; the real uid stays root, so that
 * no other user may signal or trace the thread. */
static bool assume_ids(const struct caller *caller, enum assumed *assumed)
{
        syscall(SYS_setfsgid, caller->gid);
        syscall(SYS_setfsuid, caller->uid);
        *assumed = ASSUMED_FSUID;
        if ((uid_t)syscall(SYS_setfsuid, -1) == caller->uid)
                return true;
        if (syscall(SYS_setresgid, -1, caller->gid, -1) < 0)
                return false;
        *assumed = ASSUMED_EUID;
        return syscall(SYS_setresuid, -1, caller->uid, -1) == 0;
}

int caller_assume(const struct caller *caller, enum assumed *assumed, struct error *error)
{
        *assumed = ASSUMED_NOTHING;
        if (geteuid() != 0 || caller->uid == 0)
                return 0;
        if (syscall(SYS_setgroups, caller->n_groups, caller->groups) < 0)
                return error_errno(error, STREAMER_EPERM, errno, "groups of uid %u", (unsigned)caller->uid);
        if (!assume_ids(caller, assumed))
                return error_set(error, STREAMER_EPERM, "could not open files as uid %u", (unsigned)caller->uid);
        return 0;
}

/* The thread serves other callers next, so it must not keep this one's ids. */
void caller_drop(enum assumed assumed)
{
        if (assumed == ASSUMED_NOTHING)
                return;
        if (assumed == ASSUMED_EUID) {
                require(syscall(SYS_setresuid, -1, 0, -1) == 0);
                require(syscall(SYS_setresgid, -1, getgid(), -1) == 0);
        }
        syscall(SYS_setfsuid, 0);
        syscall(SYS_setfsgid, getegid());
        require(syscall(SYS_setgroups, 0, NULL) == 0);
        long fsuid = syscall(SYS_setfsuid, -1); /* -1: there is no such call, and it is the effective one */
        require(geteuid() == 0 && (fsuid == 0 || fsuid == -1));
}
