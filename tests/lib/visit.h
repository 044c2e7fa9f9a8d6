/* SPDX-License-Identifier: Apache-2.0
 *
 * A visit to a small HTTP server: a request goes out as it is written, the answer is read to its end.
 */
#ifndef TESTS_LIB_VISIT_H
#define TESTS_LIB_VISIT_H

#include <stddef.h>

struct visit {
        int status; /* 0: closed without an answer */
        char *all;  /* head and body, NUL-terminated; visit_free */
        const char *body;
};

/* "unix:/path" or "http://127.0.0.1:PORT". */
int visit_connect(const char *where);
/* Sends "METHOD PATH HTTP/1.1" with a Host header and nothing else. */
void visit_ask(struct visit *visit, const char *where, const char *method, const char *path);
/* Reads to the end of the connection, and closes it. */
void visit_read_consume_fd(struct visit *visit, int fd);
void visit_free(struct visit *visit);

#endif
