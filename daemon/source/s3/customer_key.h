/* SPDX-License-Identifier: Apache-2.0
 *
 * The key of S3's server-side encryption with customer-provided keys (SSE-C): sent with each request for an object,
 * which the store decrypts with it and does not keep.
 */
#pragma once

#include "daemon/io/http/http.h"

#define CUSTOMER_KEY_ALGORITHM "x-amz-server-side-encryption-customer-algorithm"
#define CUSTOMER_KEY "x-amz-server-side-encryption-customer-key"
#define CUSTOMER_KEY_MD5 "x-amz-server-side-encryption-customer-key-MD5"

struct customer_key; /* in memory that is locked, not dumped, and wiped */

/* From a file of 32 bytes, or of these in base64: "file:PATH" or "credential:NAME". May block. STREAMER_EFAILED. */
int customer_key_read(struct customer_key **key, const char *setting, struct error *error);
struct customer_key *customer_key_free(struct customer_key *key); /* accepts NULL, returns NULL */

/* It is sent by https, or to this machine. */
bool customer_key_may_go(const char *url);

/* The three headers. */
int customer_key_add(const struct customer_key *key, struct http_headers *headers, struct error *error);
