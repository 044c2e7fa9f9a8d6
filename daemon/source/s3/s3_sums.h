/* SPDX-License-Identifier: Apache-2.0
 *
 * Published SHA-256 digests of a store's objects: a SHA256SUMS with the same prefix, and x-amz-checksum-sha256 where it
 * covers the whole object.
 */
#ifndef DAEMON_SOURCE_S3_S3_SUMS_H
#define DAEMON_SOURCE_S3_S3_SUMS_H

#include "daemon/io/http/http.h"
#include "daemon/source/sums.h"

struct s3_sums_request {
        struct http *http;
        struct http_access *access;
        const char *base, *prefix; /* URL of the bucket; the prefix, encoded */
        const char *shown;         /* both, for messages */
        bool listed, has_sums;     /* the objects were listed, and with them a SHA256SUMS */
};

/* Fills in sha256 of each object, in byte order of their names. */
int s3_sums_find(const struct s3_sums_request *request, struct object *objects, size_t n, struct error *error);

/* From base64, as in a checksum header, to hexadecimal; false: it is of parts, or no SHA-256. */
bool s3_sums_decode(const char *value, char hex[65]);

#endif
