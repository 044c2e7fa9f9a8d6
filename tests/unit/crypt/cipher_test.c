/* SPDX-License-Identifier: Apache-2.0
 *
 * Published vectors: RFC 8439, 2.8.2 is with associated data, so that of CryptoTensors' form is compared with OpenSSL's
 * one-shot encryption by the helper; AES-GCM: test cases 3 and 15 of its specification.
 */
#include "daemon/crypt/cipher.h"

#include "tests/lib/suite.h"

#include <openssl/evp.h>

static struct error error;

static void hex(const char *text, unsigned char *bytes)
{
        for (; text[0] != '\0'; text += 2)
                ck_assert_int_eq(sscanf(text, "%2hhx", bytes++), 1);
}

#define PLAIN                                                                                                          \
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"             \
        "b16aedf5aa0de657ba637b391aafd255"
#define KEY "feffe9928665731c6d6a8f9467308308"
#define NONCE "cafebabefacedbaddecaf888"

static const struct {
        enum cipher_kind kind;
        const char *key, *text, *tag;
} vectors[] = {
        {CIPHER_AES128GCM, KEY,
         "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa05"
         "1ba30b396a0aac973d58e091473f5985",
         "4d5c2af327cd64a62cf35abd2ba6fab4"},
        {CIPHER_AES256GCM, KEY KEY,
         "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
         "c5f61e6393ba7a0abcc9f662898015ad",
         "b094dac5d93471bdec1a502270e3cc6c"},
};

#define N 64u

TEST(a_published_vector_is_decrypted, EACH(vectors))
{
        unsigned char key[32], nonce[12], text[N], tag[16], plain[N], to[N];
        hex(vectors[_i].key, key);
        hex(NONCE, nonce);
        hex(vectors[_i].text, text);
        hex(vectors[_i].tag, tag);
        hex(PLAIN, plain);
        ck_assert_int_eq(cipher_open(vectors[_i].kind, key, nonce, to, text, N, tag, &error), 0);
        ck_assert_mem_eq(to, plain, N);
        for (size_t i = 0; i < sizeof(tag); i++) {
                tag[i] ^= 1;
                ck_assert_int_eq(cipher_open(vectors[_i].kind, key, nonce, to, text, N, tag, &error), CIPHER_WRONG_TAG);
                tag[i] ^= 1;
        }
        text[N - 1] ^= 0x80;
        ck_assert_int_eq(cipher_open(vectors[_i].kind, key, nonce, to, text, N, tag, &error), CIPHER_WRONG_TAG);
}

/* In pieces of odd sizes, in place, two messages with one key; and by another library call that encrypts. */
TEST(messages_are_decrypted_piece_by_piece, .to = CIPHER_KINDS)
{
        static const EVP_CIPHER *(*const evp[])(void) = {[CIPHER_AES128GCM] = EVP_aes_128_gcm,
                                                         [CIPHER_AES256GCM] = EVP_aes_256_gcm,
                                                         [CIPHER_CHACHA20POLY1305] = EVP_chacha20_poly1305};
        enum { SIZE = 100003 };
        unsigned char key[32] = {1, 2, 3}, nonce[12] = {9}, tag[16], *plain = must_alloc(SIZE),
                      *text = must_alloc(SIZE);
        struct cipher cipher = {.context = NULL};
        for (size_t i = 0; i < SIZE; i++)
                plain[i] = (unsigned char)(i * 7 + i / 256);
        for (unsigned message = 0; message < 2; message++) {
                int n;
                EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
                nonce[11] = (unsigned char)message;
                ck_assert(EVP_EncryptInit_ex(context, evp[_i](), NULL, key, nonce) == 1 &&
                          EVP_EncryptUpdate(context, text, &n, plain, SIZE) == 1 &&
                          EVP_EncryptFinal_ex(context, tag, &n) == 1 &&
                          EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, tag) == 1);
                EVP_CIPHER_CTX_free(context);
                ck_assert_int_eq(cipher_begin(&cipher, (enum cipher_kind)_i, message == 0 ? key : NULL, nonce, &error),
                                 0);
                for (size_t done = 0, step = 1, part; done < SIZE; done += part, step = step * 3 + 1) {
                        part = step < SIZE - done ? step : SIZE - done;
                        ck_assert_int_eq(cipher_update(&cipher, text + done, text + done, part, &error), 0);
                }
                ck_assert_int_eq(cipher_end(&cipher, tag, &error), 0);
                ck_assert_mem_eq(text, plain, SIZE);
        }
        cipher_deinit(&cipher);
}

static const struct {
        const char *name;
        int kind;
} names[] = {{"aes256gcm", CIPHER_AES256GCM},
             {"AES-256-GCM", CIPHER_AES256GCM},
             {"aes128gcm", CIPHER_AES128GCM},
             {"ChaCha20-Poly1305", CIPHER_CHACHA20POLY1305},
             {"aes256gc", -1},
             {"aes256gcmx", -1},
             {"aes192gcm", -1},
             {"-", -1},
             {"", -1}};

TEST(names_compare_without_case_and_dashes, EACH(names))
{
        ck_assert_int_eq(cipher_find(names[_i].name, strlen(names[_i].name)), names[_i].kind);
}

TEST(a_name_with_a_nul_is_none)
{
        ck_assert_int_eq(cipher_find("aes256gcm\0", 10), -1);
}
