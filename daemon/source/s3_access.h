/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking a store: signs each request, and puts a store's refusal into words.
 */
#ifndef DAEMON_SOURCE_S3_ACCESS_H
#define DAEMON_SOURCE_S3_ACCESS_H

#include "daemon/io/http.h"
#include "daemon/source/s3_site.h"

struct s3_access;

/* For one bucket in a region. The site must outlive it. NULL on ENOMEM. */
struct s3_access *s3_access_new(const struct s3_site *site, const char *region);
/* What requests take; each holds a reference. */
struct http_access *s3_access_http(struct s3_access *access);
struct s3_access *s3_access_unref(struct s3_access *access);

/* The store has said that the bucket is in this region; "" if it has not. */
void s3_access_moved(struct s3_access *access, char region[S3_REGION]);

#endif
