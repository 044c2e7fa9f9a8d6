/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of encrypted checkpoints, and the rules by which files are read: made of the configuration, immutable, and
 * shared by threads. A reload makes another one; loads keep the one with which they began.
 *
 * Keys are JSON Web Keys, or sets of them, in files that others can neither read nor write:
 *
 *   {"kty": "oct", "alg": "aes256gcm", "kid": "...", "k": "..."}     decrypts the data keys of files
 *   {"kty": "okp", "alg": "ed25519", "kid": "...", "x": "..."}       a signer that is trusted
 *
 * Secrets are in memory that is locked, if the system allows it, left out of core dumps and forked children, and wiped
 * when it is freed. The data keys of files are not kept: each is decrypted when its tensor is.
 */
#pragma once

#include "daemon/crypt/cipher.h"

#define KEYRING_KEYS_MAX 1024
#define KEYRING_ID_MAX 255 /* bytes of a key's id */

struct decryption_key {
        char *id; /* "": it has none */
        enum cipher_kind kind;
        const unsigned char *secret;
};

struct evp_pkey_st;
struct signer {
        char *id; /* as above */
        unsigned char public_key[32];
        struct evp_pkey_st *key;
};

struct keyring {
        unsigned refs; /* atomic */
        struct decryption_key *keys;
        size_t n_keys;
        struct signer *signers;
        size_t n_signers;
        bool plaintext_tensors; /* files of encrypted and of other tensors are read */
        bool require_encrypted; /* of every file */
        unsigned char *secrets; /* of the keys, in their order; CIPHER_KEY_MAX bytes each */
};

extern struct keyring keyring_none; /* without keys; it is never freed */

struct keyring_opts {
        char *const *files; /* "file:PATH" or "credential:NAME" */
        size_t n_files;
        bool plaintext_tensors, require_encrypted;
};

/* May block. STREAMER_EINVAL or STREAMER_EFAILED names the file. */
int keyring_new(struct keyring **out, const struct keyring_opts *opts, struct error *error);
struct keyring *keyring_ref(struct keyring *keyring);  /* NULL stays NULL */
struct keyring *keyring_free(struct keyring *keyring); /* with the last reference */

/* The process holds keys from now on: the system writes no core dump of it, and other processes of its user cannot
 * trace it. */
void keyring_protect_process(void);
