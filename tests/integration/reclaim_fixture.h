/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of lease reclaim.
 */
#ifndef TESTS_INTEGRATION_RECLAIM_FIXTURE_H
#define TESTS_INTEGRATION_RECLAIM_FIXTURE_H

#include "tests/lib/managed_daemon.h"
#include "tests/lib/run_as.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <sys/socket.h>

#define NOBODY 65534

#endif
