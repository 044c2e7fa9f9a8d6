/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit of the test programs: the Makefile defines that of the programs under test alone.
 */
#include "daemon/base/commit.h"

const char build_commit[] = "tests";
