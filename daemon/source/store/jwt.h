/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON Web Tokens: signed with RS256, and read for their expiry. Pure.
 */
#pragma once

#include "daemon/base/error.h"

#include <time.h>

/* HEADER.CLAIMS.SIGNATURE of two JSON texts, with an RSA key in PEM. *jwt is a secret, malloc'd. STREAMER_EFAILED: not
 * such a key. */
int jwt_sign(char **jwt, const char *header, const char *claims, const char *pem, struct error *error);

/* The claim `exp`; 0: it has none, or it is no JWT. The signature is not checked. */
time_t jwt_expires(const char *jwt);
/* " (the token expired 25 s ago, by this machine's clock)", or "": what is said of a token that was refused. */
#define JWT_NOTE 96
const char *jwt_expired_note(const char *jwt, char note[JWT_NOTE]);

/* A JSON string with its quotes. malloc'd; NULL: no memory. */
char *json_quote(const char *text);

/* Base64 with padding. malloc'd; NULL: no memory. */
char *base64_new(const void *data, size_t size);
