/* SPDX-License-Identifier: Apache-2.0
 *
 * Azure Blob Storage: for each source its account, endpoint and credentials, from the settings of the daemon and
 * Azure's variables.
 */
#pragma once

#include "daemon/source/azure/azure_credentials.h"
#include "daemon/source/listing.h"

struct azure_stores; /* shared by threads */

/* n stores for their sources and one for all others, whose settings are their defaults. Borrows the texts of all opts
 * until azure_stores_free(). An error in Azure's variables is that of each load that needs them. */
int azure_stores_new(struct azure_stores **stores, const struct azure_opts *defaults, const struct azure_opts *opts,
                     size_t n, const struct http_opts *http, struct error *error);
struct azure_stores *azure_stores_free(struct azure_stores *stores); /* accepts NULL, returns NULL */

/* ---- for the tests ---- */

/* Adds the blobs below the prefix of a page, without directories. *next: the marker of the next page, malloc'd; NULL:
 * this is the last, or an error. */
int azure_page_parse(char **next, const char *text, size_t size, const char *prefix, struct listing *list,
                     struct error *error);

/* The text that an account's key signs, for GET and HEAD: with `headers`, which the request has besides its Range.
 * malloc'd; NULL: no memory. */
char *azure_string_to_sign(const struct http_request *request, const struct http_headers *headers, const char *account);
