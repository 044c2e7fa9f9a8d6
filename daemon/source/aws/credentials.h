/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials of a store: found along AWS's chain, cached, and renewed before they expire, on a thread of their own.
 * Callers never wait: they get an error that asks them to retry.
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
#include "daemon/source/aws/keys.h"

/* Borrowed until aws_credentials_free(); NULL and "": not set. Each of the keys is a value, "file:PATH", or
 * "credential:NAME" in $CREDENTIALS_DIRECTORY; without keys: the chain. */
struct aws_credentials_opts {
        const char *profile; /* else AWS_PROFILE */
        const char *access, *secret, *token;
        const struct http_opts *http; /* for STS, as providers.h has it */
};

struct aws_credentials; /* shared by threads */

int aws_credentials_new(struct aws_credentials **credentials, const struct aws_credentials_opts *opts,
                        struct error *error);
/* After their last use. Cancels a fetch in progress and waits until it has ended. Accepts NULL, returns NULL. */
struct aws_credentials *aws_credentials_free(struct aws_credentials *credentials);

enum aws_credentials_state {
        AWS_CREDENTIALS_READY, /* with a copy of the keys */
        AWS_CREDENTIALS_LATER, /* they are being fetched, or others may replace those that the store has refused */
};

/* An enum aws_credentials_state, or an error; STREAMER_EPERM: no provider has keys. */
int aws_credentials_get(struct aws_credentials *credentials, struct aws_keys *keys, struct error *error);

/* Where the current keys are from; "": there are none yet. */
void aws_credentials_origin(struct aws_credentials *credentials, char *origin, size_t size);

/* The store says that the keys of this number have expired. True if there are others, or may be soon. */
bool aws_credentials_refused(struct aws_credentials *credentials, uint64_t number);
