/* SPDX-License-Identifier: Apache-2.0
 *
 * Files by their names, wherever they are: what web servers, S3 stores and the Hub have in common once
 * each has said how a name becomes a URL.
 */
#ifndef DAEMON_SOURCE_STORE_H
#define DAEMON_SOURCE_STORE_H

#include "daemon/io/object_http.h"
#include "daemon/source/source.h"

/* Embedded in what knows the place; its functions know it by container_of(). */
struct store {
        struct http *http;
        struct http_access *access; /* NULL: nobody asks */
        bool atomic;                /* as object_url.atomic */
        const char *listed;         /* what else than an index promises files: "listed in ..."; NULL: nothing */
        /* malloc'd; false: no memory. The name "" is the source itself. */
        bool (*locate)(const struct store *store, const char *name, char **url, char **shown);
        /* Its ETag in a listing; NULL, also as the function: it is not known. */
        const char *(*etag)(const struct store *store, const char *name);
};

/* What a file of this name is asked for by. To be freed with store_url_deinit(), also on failure. */
int store_url_init(const struct store *store, const char *name, struct object_url *url, struct error *error);
void store_url_deinit(struct object_url *url);

/* The model's files, in this order. */
int store_open_files(const struct store *store, const char *const *names, size_t n, struct source_set *set,
                     struct error *error);
/* The set's index_object is open: it is read, and the files that it names are opened. */
int store_open_indexed(const struct store *store, struct source_set *set, struct error *error);

#endif
