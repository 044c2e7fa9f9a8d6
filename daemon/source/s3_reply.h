/* SPDX-License-Identifier: Apache-2.0
 *
 * What an S3 store answers in XML: a page of ListObjectsV2, and errors. Pure.
 */
#ifndef DAEMON_SOURCE_S3_REPLY_H
#define DAEMON_SOURCE_S3_REPLY_H

#include "daemon/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- errors ---- */

struct s3_fault {
        char code[80], message[240], request_id[120];
        char region[48]; /* where the bucket is, if the error tells */
};

/* From an error's body, which is changed; what it does not tell is "". A body that is no XML, as
 * proxies answer, tells nothing. */
void s3_fault_parse(struct s3_fault *fault, char *text, size_t size);

/* ---- lists ---- */

struct s3_entry {
        const char *key;
        const char *etag; /* with its quotes; "" if it is not told */
        uint64_t size;
};

/* Called for each key; an error of its ends the parsing. */
typedef int (*s3_entry_fn)(void *context, const struct s3_entry *entry, struct error *error);

struct s3_page {
        char *next; /* the token of the page behind this; NULL if this is the last. malloc'd */
        size_t n;   /* keys in it */
};

/* A page, in encoding-type=url where it says so; `text` is changed, with room for one more byte. */
int s3_page_parse(struct s3_page *page, char *text, size_t size, s3_entry_fn fn, void *context, struct error *error);

/* In place: %XX, and '+' for a space. False where a '%' is not followed by two digits, or for NUL. */
bool s3_decode(char *text);

#endif
