/* SPDX-License-Identifier: Apache-2.0
 *
 * Real S3 stores on loopback: OpenStack Swift with s3api, and Ceph's radosgw. The script of the same name starts each
 * in the program's directory; it ends with the process that started it.
 */
#pragma once

#include "tests/lib/base.h"

struct s3_store {
        const char *kind; /* "swift", "radosgw" */
        unsigned port;
        char url[64]; /* "http://127.0.0.1:PORT" */
        const char *access, *secret;
        pid_t pid, filler_pid;
        FILE *to, *from; /* of the program that fills it */
};

/* NULL if it can be started here, else the reason for a skip. */
const char *s3_store_missing(const char *kind);
void s3_store_start(struct s3_store *store, const char *kind, const char *folder);
void s3_store_stop(struct s3_store *store);

/* Runs one command of store.py, its fields separated by tabs, which must succeed. Returns its answer; never freed. */
char *s3_store_do(struct s3_store *store, const char *format, ...) __attribute__((format(printf, 2, 3)));
