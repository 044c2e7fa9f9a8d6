/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a function as another user. Needs root.
 */
#pragma once

#include "tests/lib/suite.h"

/* The result of fn in a process of this user and group, without other groups or privileges: 0 or a STREAMER_E*.
 * Fails the test if the process fails otherwise. */
int run_as(uid_t uid, gid_t gid, int (*fn)(void));

/* For FIXTURE(.unavailable). */
static inline const char *root_unavailable(void)
{
        return getuid() != 0 ? "only root can change its user" : NULL;
}

#define ROOT_ONLY()                                                                                                    \
        do {                                                                                                           \
                if (root_unavailable())                                                                                \
                        SKIP(root_unavailable());                                                                      \
        } while (0)
