/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the log tests: standard error is a file.
 */
#pragma once

#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"

#include <fcntl.h>
#include <jansson.h>

static void set_output(enum log_format format)
{
        log_set_level(LOG_LEVEL_DEBUG);
        log_set_output(&(struct log_output){.format = format});
}
