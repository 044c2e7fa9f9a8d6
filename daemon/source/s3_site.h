/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a bucket is, and who asks there: for each source its site, from the settings of the daemon,
 * AWS's variables and the shared files.
 */
#ifndef DAEMON_SOURCE_S3_SITE_H
#define DAEMON_SOURCE_S3_SITE_H

#include "daemon/source/aws_credentials.h"

#include <stdbool.h>
#include <stddef.h>

#define S3_REGION 48

enum s3_addressing { S3_AUTO, S3_PATH, S3_VIRTUAL };

/* NULL and "": not set. */
struct s3_site_opts {
        const char *source; /* "s3://bucket/prefix": for what begins with it; NULL: for all else */
        const char *endpoint, *region, *ca, *profile;
        const char *access, *secret, *token; /* as aws_credentials.h has them */
        enum s3_addressing addressing;       /* auto: path style where an endpoint is named, else virtual host */
        bool public;                         /* unsigned requests */
        bool not_public;                     /* signed ones, even if those for all else are not */
        const struct http_opts *http;        /* as aws_credentials.h has it; for all, of those for all else */
};

struct s3_site {
        char *source, *endpoint, *region, *ca;
        enum s3_addressing addressing;
        struct aws_credentials *credentials; /* NULL: unsigned */
        struct error fault;                  /* of AWS's variables and files: there is no such place */
};

struct s3_sites; /* shared by threads */

/* n sites and one for all else, from which they take what they do not set themselves. */
int s3_sites_new(struct s3_sites **sites, const struct s3_site_opts *rest, const struct s3_site_opts *opts, size_t n,
                 struct error *error);
struct s3_sites *s3_sites_free(struct s3_sites *sites);

/* The one whose source is the longest that this begins with. */
const struct s3_site *s3_sites_find(const struct s3_sites *sites, const char *source);

/* The region of a bucket: what was learnt of it, else what is set, else us-east-1. */
void s3_sites_region(struct s3_sites *sites, const struct s3_site *site, const char *bucket, char region[S3_REGION]);
void s3_sites_learn(struct s3_sites *sites, const struct s3_site *site, const char *bucket, const char *region);

/* scheme://host and, in path style, the bucket: what an encoded "/key" or "?query" is put behind.
 * malloc'd; STREAMER_EINVAL where the bucket's name fits no host and one is wanted; the site's fault. */
int s3_site_base(const struct s3_site *site, const char *bucket, const char *region, char **base, struct error *error);

#endif
