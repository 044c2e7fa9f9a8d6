/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/run_as.h"

#include <grp.h>

#define HARNESS_FAILED 255 /* an exit status that no test function returns */

static void fail_in_child(const char *text)
{
        dprintf(STDERR_FILENO, "%s\n", text);
        _exit(HARNESS_FAILED);
}

int run_as(uid_t uid, gid_t gid, int (*fn)(void))
{
        int status;
        pid_t pid = must(fork());
        if (pid == 0) {
                die_hook = fail_in_child;
                must(setgroups(0, NULL));
                must(setresgid(gid, gid, gid));
                must(setresuid(uid, uid, uid));
                _exit(-fn() & 0xff);
        }
        must(waitpid(pid, &status, 0));
        ck_assert(WIFEXITED(status));
        ck_assert_msg(WEXITSTATUS(status) != HARNESS_FAILED, "the process of user %d failed", (int)uid);
        return -WEXITSTATUS(status);
}
