/* SPDX-License-Identifier: Apache-2.0
 *
 * Google Cloud Storage: for each source its endpoint and credentials, from the settings of the daemon and Google's
 * variables.
 */
#pragma once

#include "daemon/source/listing.h"
#include "daemon/source/store/renewal.h"

struct http_opts;

/* Of the sources that begin with `source`, or of all others; NULL and "": not set. */
struct gcs_opts {
        char *source; /* "gs://bucket/prefix" */
        char *endpoint, *credentials, *quota_project;
        bool is_anonymous;
        bool is_authorized; /* of a source: with credentials, even if requests for other sources have none */
};

struct gcs_stores; /* shared by threads */

/* n stores for their sources and one for all others, whose settings are their defaults. Borrows the texts of all opts
 * until gcs_stores_free(). An error in Google's variables is that of each load from Google. */
int gcs_stores_new(struct gcs_stores **stores, const struct gcs_opts *defaults, const struct gcs_opts *opts, size_t n,
                   const char *const *token_hosts, size_t n_token_hosts, const struct http_opts *http,
                   struct error *error);
struct gcs_stores *gcs_stores_free(struct gcs_stores *stores); /* accepts NULL, returns NULL */

/* ---- for the tests ---- */

/* Adds the files below the prefix of a page of the JSON API. *next: the token of the next page, malloc'd; NULL: this is
 * the last, or an error. Changes the text. */
int gcs_page_parse(char **next, char *text, size_t size, const char *prefix, struct listing *list, struct error *error);

/* The value of crc32c in a header x-goog-hash; false: it has none. */
bool gcs_crc32c(const char *value, uint32_t *crc);
