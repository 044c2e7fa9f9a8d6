/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests of leases that are claimed again. Each test is a process of its own, so all of it is
 * static.
 */
#ifndef TESTS_INTEGRATION_RECLAIM_STAGE_H
#define TESTS_INTEGRATION_RECLAIM_STAGE_H

#include "tests/lib/kept.h"
#include "tests/lib/person.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

#endif
