/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS Signature Version 4 in headers, for S3 requests without a body and forms of STS. Pure: the same request at the
 * same time has the same signature.
 *
 * Signed are the host, the time, the digest of the body, its type, the session token and other x-amz-* headers (of
 * which a store that is S3 refuses those that are not). Range and If-Match are not: a cache between client and store
 * may split ranges.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/store/credential.h"

struct aws_param {
        const char *name, *value;
};
/* "a=1&b=2": encoded, and sorted as the signature requires (in place), without those whose value is NULL. malloc'd. */
char *aws_query(struct aws_param *params, size_t n);

/* Adds the headers of the signature to `headers`, which may be those of the request. A request with a body is one to
 * STS, another one to S3. Its URL is encoded, with its query as aws_query() makes it. STREAMER_ENOMEM, also for a
 * secret of CREDENTIAL_SECRET_MAX bytes. */
int aws_sign(struct http_headers *headers, const struct http_request *request, const char *region, time_t when,
             const struct credential *keys, struct error *error);
