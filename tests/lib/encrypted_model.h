/* SPDX-License-Identifier: Apache-2.0
 *
 * Generated models (model.h) as encrypted files, as CryptoTensors writes them, by OpenSSL and without the daemon's
 * code. What is secret or random is a function of the model's seed. make check-python compares the form with the
 * reference package.
 *
 * Keys: "aes128gcm", "aes256gcm" and "chacha20poly1305", one of each cipher, and the signer "signer".
 */
#pragma once

#include "tests/lib/model.h"

/* Zeroed: aes256gcm, version 2 in chunks of 2 MiB, signed. */
struct encrypted_form {
        const char *cipher; /* NULL: aes256gcm */
        bool version1;
        uint64_t chunk;        /* 0: not named, which means 2 MiB */
        const char *key_id;    /* in the header; NULL: the cipher's name */
        const char *signer_id; /* likewise; NULL: "signer" */
        uint32_t counter;      /* in base_iv, of the first chunk */
        size_t plain;          /* so many first tensors are not encrypted */
        bool other_signer;     /* the signature is that of another key */
        bool is_unsigned;      /* there is no signature */
        /* In the text of the members __crypto_keys__, __encryption__ and __policy__, before it is signed: the first
         * occurrence of `find` becomes `replace`. NULL: nothing. */
        const char *find, *replace;
        /* The member is not written. NULL: all are. */
        const char *omit;
};

void encrypted_write(const struct encrypted_form *form, const struct model *m, const char *path);
/* The data key of a tensor, one of the first 64 that the last call has encrypted; 32 bytes. */
const unsigned char *encrypted_data_key(size_t tensor);
/* The key of this name, 32 bytes of which its cipher takes the first. */
void encrypted_key_of(const char *name, unsigned char key[32]);

/* The keys as a set of JSON Web Keys; `which` is a part of the names of those that are in it, NULL: all. */
char *encrypted_keys(const char *which);
/* Writes such a text to a file that nobody else can read. */
void encrypted_keys_write(const char *path, const char *text);
