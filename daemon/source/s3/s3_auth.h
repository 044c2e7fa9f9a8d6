/* SPDX-License-Identifier: Apache-2.0
 *
 * Signs each request to a store, and turns its refusals into messages.
 */
#ifndef DAEMON_SOURCE_S3_S3_AUTH_H
#define DAEMON_SOURCE_S3_S3_AUTH_H

#include "daemon/io/http/http.h"
#include "daemon/source/s3/endpoint.h"

/* For one bucket in a region. The endpoint must outlive it. NULL: no memory. */
struct http_access *s3_auth_new(const struct s3_endpoint *endpoint, const char *region);

/* The region that a response named instead; "": none has. */
void s3_auth_get_region(struct http_access *access, char region[S3_REGION]);

#endif
