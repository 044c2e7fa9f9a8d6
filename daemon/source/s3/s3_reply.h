/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses an S3 store's XML (a page of ListObjectsV2, and errors) and checksums. Pure.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>

/* ---- errors ---- */

struct s3_fault {
        char code[80], message[240], request_id[120];
        char region[48]; /* where the bucket is, if the error names it */
};

/* From an error's body; missing fields are "", and all of them if it is no XML, as that of a proxy. */
void s3_fault_parse(struct s3_fault *fault, const char *text, size_t size);

/* ---- lists ---- */

struct s3_entry {
        const char *key;
        const char *etag; /* with its quotes; "" if it is not given */
        uint64_t size;
};

/* Called for each key; an error ends the parsing. */
typedef int (*s3_entry_fn)(void *context, const struct s3_entry *entry, struct error *error);

/* A page, in encoding-type=url where it says so. *next: the token of the next page, malloc'd; NULL: this is the last,
 * or an error. */
int s3_page_parse(char **next, const char *text, size_t size, s3_entry_fn fn, void *context, struct error *error);

/* ---- checksums ---- */

/* From base64, as in a checksum header, to hexadecimal; false: it is of parts, or no SHA-256. */
bool s3_checksum_decode(const char *value, char hex[65]);
