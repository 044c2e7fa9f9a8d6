/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/fallback/thread_ids.h"

#include "daemon/base/util.h"

#include <sys/syscall.h>
#include <unistd.h>

/* glibc's wrappers change every thread of the process; the raw calls change the calling thread only. */
bool thread_ids_assume(uid_t uid, gid_t gid, enum thread_ids *ids)
{
        syscall(SYS_setfsgid, gid);
        syscall(SYS_setfsuid, uid);
        *ids = THREAD_IDS_FILE_SYSTEM;
        if ((uid_t)syscall(SYS_setfsuid, -1) == uid)
                return true;
        if (syscall(SYS_setresgid, -1, gid, -1) < 0)
                return false;
        *ids = THREAD_IDS_EFFECTIVE;
        return syscall(SYS_setresuid, -1, uid, -1) == 0;
}

void thread_ids_drop(enum thread_ids ids)
{
        if (ids == THREAD_IDS_EFFECTIVE) {
                require(syscall(SYS_setresuid, -1, 0, -1) == 0);
                require(syscall(SYS_setresgid, -1, getgid(), -1) == 0);
        }
        syscall(SYS_setfsuid, 0);
        syscall(SYS_setfsgid, getegid());
        long fsuid = syscall(SYS_setfsuid, -1); /* -1: there is no such call, and it is the effective one */
        require(geteuid() == 0 && (fsuid == 0 || fsuid == -1));
}
