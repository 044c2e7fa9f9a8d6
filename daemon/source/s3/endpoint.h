/* SPDX-License-Identifier: Apache-2.0
 *
 * S3 endpoints: for each source its address, region and credentials, from the settings of the daemon, AWS's variables
 * and the shared files.
 */
#ifndef DAEMON_SOURCE_S3_ENDPOINT_H
#define DAEMON_SOURCE_S3_ENDPOINT_H

#include "daemon/source/aws/credentials.h"

#include <stdbool.h>
#include <stddef.h>

#define S3_REGION 48

enum s3_addressing { S3_AUTO, S3_PATH, S3_VIRTUAL };

/* The settings of one store; NULL and "": not set. The keys are values, "file:PATH" or "credential:NAME". */
struct s3_endpoint_opts {
        char *source; /* "s3://bucket/prefix": for what begins with it; NULL: for all else */
        char *endpoint, *region, *ca, *profile;
        char *access_key, *secret_key, *session_token;
        enum s3_addressing addressing; /* auto: path style where an endpoint is named, else virtual host */
        bool is_unsigned;
        bool is_signed; /* of a source: signed, even if requests for all else are not */
};

struct s3_endpoint {
        const char *source; /* borrowed */
        char *endpoint, *region, *ca;
        enum s3_addressing addressing;
        struct aws_credentials *credentials; /* NULL: unsigned */
        struct error fault;                  /* of AWS's variables and files: the endpoint is not usable */
};

struct s3_sites; /* shared by threads */

/* n sites and one for all else, from which they take what they do not set themselves. Borrows the texts of all opts
 * until s3_sites_free(). `http` as in struct aws_credentials_opts. */
int s3_sites_new(struct s3_sites **sites, const struct s3_endpoint_opts *rest, const struct s3_endpoint_opts *opts,
                 size_t n, const struct http_opts *http, struct error *error);
struct s3_sites *s3_sites_free(struct s3_sites *sites);

/* The one whose source is the longest that this begins with. */
const struct s3_endpoint *s3_sites_find(const struct s3_sites *sites, const char *source);

/* The region of a bucket: what was learnt of it, else what is set, else us-east-1. */
void s3_sites_region(struct s3_sites *sites, const struct s3_endpoint *site, const char *bucket,
                     char region[S3_REGION]);
void s3_sites_learn(struct s3_sites *sites, const struct s3_endpoint *site, const char *bucket, const char *region);

/* scheme://host and, in path style, the bucket: what an encoded "/key" or "?query" is put behind.
 * malloc'd; STREAMER_EINVAL where the bucket's name fits no host and one is wanted; the site's fault. */
int s3_endpoint_base(const struct s3_endpoint *site, const char *bucket, const char *region, char **base,
                     struct error *error);

#endif
