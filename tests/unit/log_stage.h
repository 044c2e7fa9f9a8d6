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

/* What is written to standard error while say() runs. */
static char *captured(void (*say)(void))
{
        char *path = suite_path("stderr-%d", (int)getpid());
        int saved = must(dup(STDERR_FILENO)), fd = must(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
        must(dup2(fd, STDERR_FILENO));
        say();
        must(dup2(saved, STDERR_FILENO));
        close(saved);
        close(fd);
        return file_read(path, NULL);
}

static void set_output(enum log_format format)
{
        log_init(LOG_LEVEL_DEBUG);
        log_set_output(&(struct log_output){.format = format});
}

#endif
