/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/encrypted_model.h"

#include "proto/scope.h"
#include "tests/lib/base.h"

#include <endian.h>
#include <openssl/evp.h>

#define TAG 16
#define NONCE 12
#define DEFAULT_CHUNK (UINT64_C(2) << 20)
#define POLICY "{\"local\":\"package model\\nallow = true\",\"remote\":\"package model\\nallow = true\"}"

#define DATA_KEYS 64

static unsigned char data_keys[DATA_KEYS][32];

/* ---- keys ---- */

const unsigned char *encrypted_data_key(size_t tensor)
{
        return data_keys[tensor];
}

static const struct cipher_row {
        const char *name;
        int key;
        const EVP_CIPHER *(*evp)(void);
} ciphers[] = {{"aes128gcm", 16, EVP_aes_128_gcm},
               {"aes256gcm", 32, EVP_aes_256_gcm},
               {"chacha20poly1305", 32, EVP_chacha20_poly1305}};

/* Of a name: 32 bytes, of which the first are used. */
void encrypted_key_of(const char *name, unsigned char key[32])
{
        uint64_t state = 77;
        for (const char *c = name; *c != '\0'; c++)
                state = splitmix(state ^ (unsigned char)*c);
        for (int i = 0; i < 32; i++)
                key[i] = (unsigned char)draw_below(&state, 256);
}

static char *base64(const void *bytes, size_t n)
{
        char *text = must_alloc(4 * n / 3 + 8);
        EVP_EncodeBlock((unsigned char *)text, bytes, (int)n);
        return text;
}

static EVP_PKEY *signing_key(const char *name)
{
        unsigned char seed[32];
        encrypted_key_of(name, seed);
        return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, sizeof(seed));
}

static void put_key(FILE *f, const char *type, const char *alg, const char *id, const char *member,
                    const unsigned char *key, size_t size)
{
        cleanup_free char *text = base64(key, size);
        fprintf(f, "%s{\"kty\":\"%s\",\"alg\":\"%s\",\"kid\":\"%s\",\"%s\":\"%s\"}", ftell(f) > 9 ? "," : "", type, alg,
                id, member, text);
}

char *encrypted_keys(const char *which)
{
        char *text = NULL;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        fputs("{\"keys\":[", f);
        for (size_t i = 0; i < sizeof(ciphers) / sizeof(ciphers[0]); i++) {
                unsigned char key[32];
                encrypted_key_of(ciphers[i].name, key);
                if (which == NULL || strstr(which, ciphers[i].name) != NULL)
                        put_key(f, "oct", ciphers[i].name, ciphers[i].name, "k", key, (size_t)ciphers[i].key);
        }
        if (which == NULL || strstr(which, "signer") != NULL) {
                unsigned char public_key[32];
                size_t size = sizeof(public_key);
                EVP_PKEY *key = signing_key("signer");
                EVP_PKEY_get_raw_public_key(key, public_key, &size);
                EVP_PKEY_free(key);
                put_key(f, "okp", "ed25519", "signer", "x", public_key, size);
        }
        fputs("]}", f);
        fclose(f);
        return text;
}

void encrypted_keys_write(const char *path, const char *text)
{
        unlink(path);
        file_write(path, text, strlen(text));
        must(chmod(path, 0400));
}

/* ---- a message ---- */

static void seal(const struct cipher_row *cipher, const unsigned char *key, const unsigned char *nonce, void *bytes,
                 size_t n, unsigned char tag[TAG])
{
        EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
        int written;
        bool ok = EVP_EncryptInit_ex(context, cipher->evp(), NULL, key, nonce) == 1 &&
                  EVP_EncryptUpdate(context, bytes, &written, bytes, (int)n) == 1 &&
                  EVP_EncryptFinal_ex(context, tag, &written) == 1 &&
                  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag) == 1;
        if (!ok)
                die("OpenSSL does not encrypt");
        EVP_CIPHER_CTX_free(context);
}

static void draw_bytes(uint64_t *state, unsigned char *bytes, size_t n)
{
        for (size_t i = 0; i < n; i++)
                bytes[i] = (unsigned char)draw_below(state, 256);
}

/* ---- the header ---- */

static void put_json(FILE *f, const char *text)
{
        fputc('"', f);
        for (; *text != '\0'; text++)
                if (*text == '"' || *text == '\\')
                        fprintf(f, "\\%c", *text);
                else if ((unsigned char)*text < ' ')
                        fprintf(f, "\\u%04x", (unsigned)*text);
                else
                        fputc(*text, f);
        fputc('"', f);
}

/* Encrypts tensor i in place, and appends its entry. */
static void encrypt_tensor(const struct encrypted_form *form, const struct cipher_row *cipher, const struct model *m,
                           size_t i, unsigned char *data, uint64_t *state, FILE *entries)
{
        unsigned char wrapping[32], key[32], key_nonce[NONCE], key_tag[TAG], nonce[NONCE];
        uint64_t bytes = m->tensors[i].bytes;
        uint64_t chunk = form->version1 ? bytes : form->chunk > 0 ? form->chunk : DEFAULT_CHUNK;
        size_t n = bytes > chunk ? (size_t)((bytes - 1) / chunk + 1) : 1;
        cleanup_free unsigned char *tags = must_alloc(n * TAG);
        uint32_t counter = htobe32(form->counter);
        draw_bytes(state, key, sizeof(key));
        if (i < DATA_KEYS)
                memcpy(data_keys[i], key, sizeof(key));
        draw_bytes(state, key_nonce, sizeof(key_nonce));
        draw_bytes(state, nonce, sizeof(nonce));
        memcpy(nonce + 8, &counter, sizeof(counter));
        for (size_t k = 0; k < n; k++) {
                unsigned char its[NONCE];
                uint64_t from = k * chunk, len = bytes - from < chunk ? bytes - from : chunk;
                memcpy(its, nonce, sizeof(its));
                counter = htobe32(form->counter + (uint32_t)k);
                memcpy(its + 8, &counter, sizeof(counter));
                seal(cipher, key, its, data + from, (size_t)len, tags + k * TAG);
        }
        encrypted_key_of(cipher->name, wrapping);
        seal(cipher, wrapping, key_nonce, key, (size_t)cipher->key, key_tag);
        bool none = form->version1 && bytes == 0;
        fputs(i > form->plain ? "," : "", entries);
        put_json(entries, m->tensors[i].name);
        fprintf(entries, ":{\"wrapped_key\":\"%s\",\"key_iv\":\"%s\",\"key_tag\":\"%s\",\"%s\":\"%s\",\"%s\":\"%s\"}",
                base64(key, (size_t)cipher->key), base64(key_nonce, NONCE), base64(key_tag, TAG),
                form->version1 ? "iv" : "base_iv", none ? "" : base64(nonce, NONCE), form->version1 ? "tag" : "tags",
                none ? "" : base64(tags, n * TAG));
}

static char *replaced(const struct encrypted_form *form, char *text)
{
        char *at = form->find != NULL ? strstr(text, form->find) : NULL;
        return at != NULL ? format_text("%.*s%s%s", (int)(at - text), text, form->replace, at + strlen(form->find))
                          : text;
}

/* Members in order of their names, and last one that is none of the format. */
static char *metadata_of(const struct encrypted_form *form, char *const *members, const char *signature)
{
        static const char *const names[] = {"__crypto_keys__", "__encryption__", "__policy__"};
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        fputc('{', f);
        for (size_t i = 0; i < 3; i++) {
                if (form->omit != NULL && strcmp(names[i], form->omit) == 0)
                        continue;
                fprintf(f, "\"%s\":", names[i]);
                put_json(f, members[i]);
                fputc(',', f);
        }
        if (signature != NULL)
                fprintf(f, "\"__signature__\":\"%s\",", signature);
        fputs("\"format\":\"pt\"}", f);
        fclose(f);
        return text;
}

static char *header_with(const struct model *m, char *metadata, size_t *size)
{
        struct model with = *m;
        with.metadata = metadata;
        return model_header(&with, size);
}

static char *sign(const struct encrypted_form *form, const struct model *m, char *const *members)
{
        unsigned char signature[64];
        size_t size, len = sizeof(signature);
        char *text = header_with(m, metadata_of(form, members, NULL), &size);
        while (text[size - 1] == ' ')
                size--;
        EVP_MD_CTX *context = EVP_MD_CTX_new();
        EVP_PKEY *key = signing_key(form->other_signer ? "other" : "signer");
        if (EVP_DigestSignInit(context, NULL, NULL, NULL, key) != 1 ||
            EVP_DigestSign(context, signature, &len, (const unsigned char *)text, size) != 1)
                die("OpenSSL does not sign");
        return base64(signature, len);
}

void encrypted_write(const struct encrypted_form *form, const struct model *m, const char *path)
{
        const char *name = form->cipher != NULL ? form->cipher : "aes256gcm";
        const struct cipher_row *cipher = ciphers;
        while (strcmp(cipher->name, name) != 0)
                cipher++;
        uint64_t state = m->seed + 1, at = 0;
        cleanup_free unsigned char *data = must_alloc(m->bytes + 1);
        char *entries = NULL;
        size_t size;
        FILE *f = open_memstream(&entries, &size);
        fputc('{', f);
        for (size_t i = 0; i < m->n; at += m->tensors[i++].bytes) {
                model_contents(m, i, 0, data + at, m->tensors[i].bytes);
                if (i >= form->plain)
                        encrypt_tensor(form, cipher, m, i, data + at, &state, f);
        }
        fputc('}', f);
        fclose(f);
        char *chunk = form->version1 || form->chunk == 0 ? format_text("%s", "")
                                                         : format_text("\"chunk_size\":%" PRIu64 ",", form->chunk);
        char *members[] = {
                format_text("{%s\"enc\":{\"alg\":\"%s\",\"kid\":\"%s\",\"kty\":\"oct\"},\"sign\":{\"alg\":\"ed25519\","
                            "\"kid\":\"%s\",\"kty\":\"okp\"},\"version\":\"%d\"}",
                            chunk, cipher->name, form->key_id != NULL ? form->key_id : cipher->name,
                            form->signer_id != NULL ? form->signer_id : "signer", form->version1 ? 1 : 2),
                entries, format_text("%s", POLICY)};
        for (size_t i = 0; i < 3; i++)
                members[i] = replaced(form, members[i]);
        char *header =
                header_with(m, metadata_of(form, members, form->is_unsigned ? NULL : sign(form, m, members)), &size);
        uint64_t length = htole64(size);
        FILE *out = fopen(path, "we");
        if (out == NULL || fwrite(&length, 8, 1, out) != 1 || fwrite(header, size, 1, out) != 1 ||
            (m->bytes > 0 && fwrite(data, m->bytes, 1, out) != 1) || fclose(out) != 0)
                die_errno("%s", path);
}
