/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests of the log: standard error is a file. Each test is a process of its own, so all of
 * it is static.
 */
#ifndef TESTS_UNIT_LOG_STAGE_H
#define TESTS_UNIT_LOG_STAGE_H

#include "tests/lib/suite.h"

#include "daemon/base/log.h"
#include "daemon/base/log_line.h"

#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void set_output(enum log_format format)
{
        log_init(LOG_LEVEL_DEBUG);
        log_set_output(&(struct log_output){.format = format});
}

#endif
