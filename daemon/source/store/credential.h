/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request to a store is authorized with. Secrets are wiped when they are freed.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>
#include <time.h>

#define CREDENTIAL_SECRET_MAX 512 /* a longer secret cannot be signed with */

enum credential_kind {
        CREDENTIAL_KEYS,   /* sign the request: access and secret, and the token of a session */
        CREDENTIAL_BEARER, /* token, in the header Authorization */
        CREDENTIAL_QUERY,  /* token, parameters of the URL */
        CREDENTIAL_NONE,   /* the request is anonymous */
};

struct credential {
        enum credential_kind kind;
        char *access, *secret; /* KEYS; else NULL */
        char *token;           /* NULL: of no session */
        char *project;         /* that pays for requests (Google); NULL: the bucket's own */
        char *origin;          /* where it is from, for messages; no secret. NULL: there is none here */
        time_t expires;        /* 0: never */
        uint64_t number;       /* set by renewal_get(): differs for different ones */
};

/* Of one provider of a chain; or an error. */
enum credential_provided {
        CREDENTIAL_NOT_CONFIGURED, /* the next one is asked */
        CREDENTIAL_FOUND,
};

/* These return CREDENTIAL_FOUND or an error: STREAMER_EFAILED (what no header or signature may have), STREAMER_ENOMEM.
 * The token of keys may be NULL or "". */
int credential_init_keys(struct credential *credential, const char *access, const char *secret, const char *token,
                         const char *origin, struct error *error);
int credential_init_token(struct credential *credential, enum credential_kind kind, const char *token, time_t expires,
                          const char *origin, struct error *error);
int credential_init_anonymous(struct credential *credential, const char *origin, struct error *error);
/* STREAMER_ENOMEM. */
int credential_copy(struct credential *to, const struct credential *from, struct error *error);
void credential_deinit(struct credential *credential); /* accepts a zeroed one */

/* The same secrets. */
bool credential_same(const struct credential *a, const struct credential *b);

/* "2031-02-28T12:00:00Z", with a fraction or not; -1 if it is something else. */
time_t credential_time(const char *text);
