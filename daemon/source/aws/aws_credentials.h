/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys for S3, found along AWS's chain.
 *
 *   settings of the daemon, if they name keys      (then nothing else is tried)
 *   AWS_ACCESS_KEY_ID, ...                         environment, unless the settings name a profile
 *   AWS_PROFILE in the shared files                profile, and roles it may assume
 *   AWS_WEB_IDENTITY_TOKEN_FILE, or a profile's    web identity, from STS; the first as the environment
 *   AWS_CONTAINER_CREDENTIALS_*                    container endpoint
 *   instance metadata (IMDSv2)                     instance role
 *
 * The first that is configured decides, also by failing: another one's keys would have another one's rights.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/store/renewal.h"

/* Borrowed until renewal_free(); NULL and "": not set. Each of the keys is a value, "file:PATH", or
 * "credential:NAME" in $CREDENTIALS_DIRECTORY; without keys: the chain. */
struct aws_credentials_opts {
        const char *profile; /* else AWS_PROFILE */
        const char *access, *secret, *token;
        const struct http_opts *http; /* for STS, as service.h has it */
};

int aws_credentials_new(struct renewal **renewal, const struct aws_credentials_opts *opts, struct error *error);
