/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands and configurations of README.md and docs/ work as they are written.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

static const char *unavailable(void)
{
        char *said;
        if (!command_exists("unshare") || shell(&said, "unshare -m mount -t tmpfs none /mnt") != 0)
                return "no mount namespace here";
        return NULL;
}

FIXTURE(.timeout = 120, .unavailable = unavailable);

TEST(every_block_of_commands_runs_or_says_why_not)
{
        char *said;
        int status = shell(&said, "unshare -m python3 tests/lib/documented_commands.py %s 2>&1", build_path(""));
        ck_assert_msg(status == 0, "%s", said);
        fputs(said, stdout);
}
