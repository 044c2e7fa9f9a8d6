/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/crypt/cipher.h"

#include "daemon/base/util.h"
#include "daemon/crypt/key_memory.h"
#include "proto/require.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

/* Lengths are ints. */
#define UPDATE_MAX ((size_t)1 << 30)

static const struct kind {
        const char *name;
        size_t key_size;
        uint64_t message_max;
        const EVP_CIPHER *(*evp)(void);
} kinds[CIPHER_KINDS] = {
        /* GCM counts blocks of 16 bytes in 32 bits, and takes two of the values itself. */
        [CIPHER_AES128GCM] = {"aes128gcm", 16, (UINT64_C(1) << 36) - 32, EVP_aes_128_gcm},
        [CIPHER_AES256GCM] = {"aes256gcm", 32, (UINT64_C(1) << 36) - 32, EVP_aes_256_gcm},
        [CIPHER_CHACHA20POLY1305] = {"chacha20poly1305", 32, (UINT64_C(1) << 38) - 64, EVP_chacha20_poly1305},
};

const char *cipher_name(enum cipher_kind kind)
{
        return kinds[kind].name;
}

size_t cipher_key_size(enum cipher_kind kind)
{
        return kinds[kind].key_size;
}

uint64_t cipher_message_max(enum cipher_kind kind)
{
        return kinds[kind].message_max;
}

static bool same_name(const char *known, const char *name, size_t len)
{
        for (size_t i = 0; i < len; i++) {
                char c = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
                if (c == '-')
                        continue;
                if (c != *known || c == '\0')
                        return false;
                known++;
        }
        return *known == '\0';
}

int cipher_find(const char *name, size_t len)
{
        for (int i = 0; i < CIPHER_KINDS; i++)
                if (same_name(kinds[i].name, name, len))
                        return i;
        return -1;
}

static int failed(struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "OpenSSL could not decrypt");
}

/* OpenSSL looks up each once, and has then allocated what stays: the memory for keys is for contexts alone. */
static pthread_once_t fetched_once = PTHREAD_ONCE_INIT;
static EVP_CIPHER *fetched[CIPHER_KINDS]; /* NULL: OpenSSL finds it by itself */

static void fetch(void)
{
        for (int i = 0; i < CIPHER_KINDS; i++)
                fetched[i] = EVP_CIPHER_fetch(NULL, EVP_CIPHER_get0_name(kinds[i].evp()), NULL);
}

static const EVP_CIPHER *cipher_of(enum cipher_kind kind)
{
        pthread_once(&fetched_once, fetch);
        return fetched[kind] ?: kinds[kind].evp();
}

int cipher_begin(struct cipher *cipher, enum cipher_kind kind, const unsigned char *key, const unsigned char *nonce,
                 struct error *error)
{
        require(key != NULL || cipher->context != NULL);
        const EVP_CIPHER *evp = key != NULL ? cipher_of(kind) : NULL;
        key_memory_begin();
        if (cipher->context == NULL)
                cipher->context = EVP_CIPHER_CTX_new();
        int r = cipher->context != NULL ? EVP_DecryptInit_ex(cipher->context, evp, NULL, key, nonce) : 0;
        key_memory_end();
        return r == 1 ? 0 : failed(error);
}

int cipher_update(struct cipher *cipher, unsigned char *to, const unsigned char *from, size_t n, struct error *error)
{
        for (size_t done = 0, part; done < n; done += part) {
                int written;
                part = n - done < UPDATE_MAX ? n - done : UPDATE_MAX;
                if (EVP_DecryptUpdate(cipher->context, to + done, &written, from + done, (int)part) != 1)
                        return failed(error);
                require((size_t)written == part); /* neither cipher holds bytes back */
        }
        return 0;
}

int cipher_end(struct cipher *cipher, const unsigned char *tag, struct error *error)
{
        unsigned char none[CIPHER_TAG], copy[CIPHER_TAG];
        int written;
        memcpy(copy, tag, CIPHER_TAG);
        if (EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_AEAD_SET_TAG, CIPHER_TAG, copy) != 1)
                return failed(error);
        return EVP_DecryptFinal_ex(cipher->context, none, &written) == 1 ? 0 : CIPHER_WRONG_TAG;
}

void cipher_deinit(struct cipher *cipher)
{
        EVP_CIPHER_CTX_free(cipher->context);
        cipher->context = NULL;
}

int cipher_open(enum cipher_kind kind, const unsigned char *key, const unsigned char *nonce, unsigned char *to,
                const unsigned char *from, size_t n, const unsigned char *tag, struct error *error)
{
        struct cipher cipher = {.context = NULL};
        int r = cipher_begin(&cipher, kind, key, nonce, error)
                        ?: cipher_update(&cipher, to, from, n, error)
                        ?: cipher_end(&cipher, tag, error);
        cipher_deinit(&cipher);
        return r;
}
