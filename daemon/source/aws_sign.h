/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS Signature Version 4 by headers, as S3 wants it of requests without a body and STS of forms. Pure:
 * the same request at the same time has the same signature.
 *
 * Signed are the host, the time, the digest of the body, its type, the session token and what else is of
 * x-amz-*. Range and If-Match are not: a cache between here and the store may cut ranges anew.
 */
#ifndef DAEMON_SOURCE_AWS_SIGN_H
#define DAEMON_SOURCE_AWS_SIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* ---- the parts of a URL ---- */

/* Every byte but A-Z a-z 0-9 - . _ ~ as %XX, once; '/' stays where `slashes`. malloc'd. */
char *aws_encode(const char *text, bool slashes);

struct aws_param {
        const char *name, *value;
};
/* "a=1&b=2": encoded, and sorted as the signature has it (in place). malloc'd. */
char *aws_query(struct aws_param *params, size_t n);

/* The Host header of a request for this URL: as it is sent, without the scheme's own port. malloc'd. */
char *aws_host(const char *url);

/* ---- signing ---- */

struct aws_sign_request {
        const char *method;
        const char *host;  /* from aws_host() */
        const char *path;  /* encoded, from aws_encode(): begins with '/' */
        const char *query; /* from aws_query(); "" if there is none */
        const char *region;
        time_t when;
        bool checksum; /* goes with "x-amz-checksum-mode: ENABLED" */
        /* Of another service than S3. */
        const char *service;     /* "sts"; NULL: S3 */
        const char *type, *body; /* Content-Type, and what is sent; NULL: nothing is */
};

#define AWS_SECRET_MAX 512 /* a longer secret cannot be signed with */

struct aws_sign_keys {
        const char *access, *secret;
        const char *token; /* NULL if the keys are of no session */
};

/* Values of headers; to be wiped and freed with aws_signed_deinit(). */
struct aws_signed {
        char *authorization;
        char date[32];      /* x-amz-date */
        const char *digest; /* x-amz-content-sha256; NULL: S3 alone wants it */
        const char *token;  /* x-amz-security-token: the keys' own, or NULL */
};

/* 0, or -1 where memory is short. */
int aws_sign(struct aws_signed *out, const struct aws_sign_request *request, const struct aws_sign_keys *keys);
void aws_signed_deinit(struct aws_signed *out); /* accepts a zeroed one */

#endif
