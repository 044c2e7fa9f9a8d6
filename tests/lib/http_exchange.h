/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends one request to a local HTTP server, as given, and reads the response to its end.
 */
#pragma once

#include <stddef.h>

struct http_exchange {
        int status; /* 0: closed without an answer */
        char *all;  /* head and body, NUL-terminated; http_exchange_free */
        const char *body;
        size_t size; /* of the body */
};

/* "unix:/path" or "http://127.0.0.1:PORT". */
int http_exchange_connect(const char *where);
/* Sends "METHOD PATH HTTP/1.1" with a Host header and nothing else. */
void http_exchange_request(struct http_exchange *exchange, const char *where, const char *method, const char *path);
/* Reads to the end of the connection, and closes it. */
void http_exchange_read_consume_fd(struct http_exchange *exchange, int fd);
void http_exchange_free(struct http_exchange *exchange);
