/* SPDX-License-Identifier: Apache-2.0
 *
 * Being somebody else for a while, which only root can.
 */
#ifndef TESTS_LIB_PERSON_H
#define TESTS_LIB_PERSON_H

#include "tests/lib/suite.h"

#include <sys/types.h>

/* What fn answers in a process of this user and group, in no other group and without rights: 0 or a
 * STREAMER_E*. */
int person_does(uid_t uid, gid_t gid, int (*fn)(void));

#define ROOT_ONLY()                                                                                                    \
        do {                                                                                                           \
                if (getuid() != 0)                                                                                     \
                        SKIP("only root can be somebody else");                                                        \
        } while (0)

#endif
