/* SPDX-License-Identifier: Apache-2.0
 *
 * Real S3 stores on loopback: OpenStack Swift with s3api, and Ceph's radosgw. Each is started by a
 * script of its name in a folder of the program's, and ends with the process that has started it.
 */
#ifndef TESTS_LIB_STORE_H
#define TESTS_LIB_STORE_H

#include "tests/lib/base.h"

#include <stdio.h>
#include <sys/types.h>

struct store {
        const char *kind; /* "swift", "radosgw" */
        unsigned port;
        char url[64]; /* "http://127.0.0.1:PORT" */
        const char *access, *secret;
        pid_t pid, filler_pid;
        FILE *to, *from; /* of the program that fills it */
};

/* NULL: it can be started here; else why not. */
const char *store_missing(const char *kind);
void store_start(struct store *store, const char *kind, const char *folder);
void store_stop(struct store *store);

/* One command of store.py, its fields separated by tabs; fails unless it succeeds. Its answer; never freed. */
char *store_do(struct store *store, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
