/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of credentials, and the forms in which services return them. Secrets are wiped when they are freed.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>
#include <time.h>

#define AWS_SECRET_MAX 512 /* a longer secret cannot be signed with */

struct aws_keys {
        char *access, *secret;
        char *token;     /* NULL: of no session */
        char *origin;    /* where they are from, for messages; no secret */
        time_t expires;  /* 0: never */
        uint64_t number; /* set by aws_credentials_get(): differs for different keys */
};

/* Of one provider of the chain; or an error. */
enum aws_provided {
        AWS_NOT_CONFIGURED, /* the next one is asked */
        AWS_KEYS,
};

/* These return AWS_KEYS or an error: STREAMER_EFAILED, STREAMER_ENOMEM. `token` may be NULL or "". */
int aws_keys_init(struct aws_keys *keys, const char *access, const char *secret, const char *token, const char *origin,
                  struct error *error);
/* {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"} of the container and instance endpoints. Changes the text.
 */
int aws_keys_parse_json(struct aws_keys *keys, char *text, size_t size, const char *origin, struct error *error);
/* The response of STS to any of its actions. */
int aws_keys_parse_xml(struct aws_keys *keys, const char *text, size_t size, const char *origin, struct error *error);

void aws_keys_deinit(struct aws_keys *keys); /* accepts a zeroed one */
