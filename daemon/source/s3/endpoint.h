/* SPDX-License-Identifier: Apache-2.0
 *
 * S3 endpoints: for each source its address, region and credentials, from the settings of the daemon, AWS's variables
 * and the shared files.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/aws/aws_credentials.h"

#define S3_REGION 48
#define S3_BUCKET 256

enum s3_addressing { S3_AUTO, S3_PATH, S3_VIRTUAL };

/* The settings of one store; NULL and "": not set. The keys are values, "file:PATH" or "credential:NAME". */
struct s3_endpoint_opts {
        char *source; /* "s3://bucket/prefix": for sources that begin with it; NULL: for all others */
        char *endpoint, *region, *ca, *profile;
        const char *variable; /* of another program that the endpoint is from; NULL: it is a setting */
        char *access_key, *secret_key, *session_token;
        char *sse_c_key;               /* of a source: the key of its objects (customer_key.h); never a value */
        enum s3_addressing addressing; /* auto: path style where an endpoint is named, else virtual host */
        bool is_unsigned;
        bool is_signed; /* of a source: signed, even if requests for other sources are not */
};

struct s3_endpoint {
        const char *source; /* borrowed */
        char *url, *ca;
        char region[S3_REGION]; /* "": not configured */
        enum s3_addressing addressing;
        struct renewal *credentials; /* NULL: unsigned */
        const char *sse_c_key;       /* NULL: none; borrowed */
        struct error fault;          /* in variables and files of other programs: the endpoint is not usable */
};

struct s3_endpoints; /* shared by threads */

/* n endpoints for their sources and one for all others, whose settings are their defaults. Borrows the texts of all
 * opts until s3_endpoints_free(). `http` as in struct aws_credentials_opts. */
int s3_endpoints_new(struct s3_endpoints **endpoints, const struct s3_endpoint_opts *defaults,
                     const struct s3_endpoint_opts *opts, size_t n, const struct http_opts *http, struct error *error);
struct s3_endpoints *s3_endpoints_free(struct s3_endpoints *endpoints);

/* The one with the longest source that is a prefix of this one. */
const struct s3_endpoint *s3_endpoints_find(const struct s3_endpoints *endpoints, const char *source);

/* The region of a bucket: as a response named it, else the configured one, else us-east-1. */
void s3_endpoints_get_region(struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint, const char *bucket,
                             char region[S3_REGION]);

/* scheme://host and, in path style, the bucket: an encoded "/key" or "?query" follows it. malloc'd; STREAMER_EINVAL:
 * the bucket's name is invalid in a host, and virtual hosts are configured; or the endpoint's fault. */
int s3_endpoint_base(const struct s3_endpoint *endpoint, const char *bucket, const char *region, char **base,
                     struct error *error);

/* Signs each request to one bucket in a region, adds the customer's key to those for objects, turns refusals into
 * messages, and stores the region that one names. `base` is s3_endpoint_base()'s. The endpoints must outlive it. May
 * block: reads the key. STREAMER_EFAILED: it cannot be read; STREAMER_EPERM: it may not be sent there. */
int s3_auth_new(struct http_access **access, struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint,
                const char *bucket, const char *region, const char *base, struct error *error);
