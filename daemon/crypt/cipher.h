/* SPDX-License-Identifier: Apache-2.0
 *
 * Authenticated ciphers, by OpenSSL: AES-GCM and ChaCha20-Poly1305 with a nonce of 12 bytes, a tag of 16, and no
 * associated data. A message is decrypted piece by piece; nothing of it is trustworthy before its tag was compared.
 *
 * Any thread; a struct cipher belongs to one at a time.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>

#define CIPHER_NONCE 12u
#define CIPHER_TAG 16u
#define CIPHER_KEY_MAX 32u

enum cipher_kind { CIPHER_AES128GCM, CIPHER_AES256GCM, CIPHER_CHACHA20POLY1305, CIPHER_KINDS };

/* As files write it. */
const char *cipher_name(enum cipher_kind kind);
/* By a name of this length, without regard to case and dashes; -1: none. */
int cipher_find(const char *name, size_t len);
size_t cipher_key_size(enum cipher_kind kind);
/* The longest message, in bytes. */
uint64_t cipher_message_max(enum cipher_kind kind);

struct evp_cipher_ctx_st;

/* A message that is being decrypted; zeroed: none was yet. cipher_deinit() wipes the key. */
struct cipher {
        struct evp_cipher_ctx_st *context;
};

#define CIPHER_WRONG_TAG 1

/* Begins a message; NULL key: the same kind and key as that of the last message. 0, or STREAMER_EFAILED. */
int cipher_begin(struct cipher *cipher, enum cipher_kind kind, const unsigned char *key, const unsigned char *nonce,
                 struct error *error);
/* The next n bytes; `to` may be `from`. 0, or STREAMER_EFAILED. */
int cipher_update(struct cipher *cipher, unsigned char *to, const unsigned char *from, size_t n, struct error *error);
/* 0, CIPHER_WRONG_TAG, or STREAMER_EFAILED. */
int cipher_end(struct cipher *cipher, const unsigned char *tag, struct error *error);
void cipher_deinit(struct cipher *cipher);

/* A whole message, as the three do. */
int cipher_open(enum cipher_kind kind, const unsigned char *key, const unsigned char *nonce, unsigned char *to,
                const unsigned char *from, size_t n, const unsigned char *tag, struct error *error);
