/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reader of remote objects knows of them: private to daemon/io.
 */
#ifndef DAEMON_IO_REMOTE_REMOTE_H
#define DAEMON_IO_REMOTE_REMOTE_H

#include "daemon/io/remote/http_object.h"

#include <pthread.h>

struct remote {
        struct http *http;
        struct http_access *access;
        char *url, *etag, *modified; /* etag, modified: NULL where there is none */
        bool atomic, text;           /* as in struct object_url */
        unsigned char *first;        /* the object's beginning */
        uint64_t n_first;
        pthread_mutex_t mutex;
        char *led; /* where redirects led last; NULL */
};
struct remote *remote_of(const struct object *object);

struct http *remote_http(const struct object *object);

/* A request for its bytes; len 0: all of it. What it points to lives as long as the object. */
void remote_request(const struct object *object, uint64_t offset, uint64_t len, struct http_request *request);
/* STREAMER_EFAILED where an answer is of another version. */
int remote_check_answer(const struct object *object, const struct http_answer *answer, struct error *error);

/* The last target of its URL's redirects, so that not every range is redirected: a copy, or NULL. Links
 * expire; then NULL is set, and the next request starts from the beginning. */
char *remote_redirect_url(const struct object *object);
void remote_set_redirect_url(const struct object *object, const char *led);

#endif
