/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/store/jwt.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/store/json_values.h"

#include <limits.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#define CLAIMS_MAX (64 * KiB)

char *base64_new(const void *data, size_t size)
{
        char *text = size < INT_MAX / 2 ? calloc(1, 4 * ((size + 2) / 3) + 1) : NULL;
        if (text != NULL)
                EVP_EncodeBlock((unsigned char *)text, data, (int)size);
        return text;
}

/* The alphabet of URLs, without padding. */
static char *base64url_new(const void *data, size_t size)
{
        char *text = base64_new(data, size);
        for (char *c = text; c != NULL && *c != '\0'; c++)
                *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
        if (text != NULL)
                text[trimmed_len(text, '=')] = '\0';
        return text;
}

/* ---- signing ---- */

/* A key that is encrypted has no password here, and OpenSSL would ask for one at the terminal. */
static int no_password(char *buffer, int size, int writing, void *context)
{
        return -1;
}

/* The signature of a text; NULL: no memory, or a key of another kind. */
static char *sign(const char *pem, const char *text)
{
        BIO *bio = BIO_new_mem_buf(pem, -1);
        EVP_PKEY *key = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
        EVP_MD_CTX *md = EVP_MD_CTX_new();
        unsigned char signature[1024];
        size_t size = sizeof(signature);
        bool ok = key != NULL && md != NULL && EVP_PKEY_base_id(key) == EVP_PKEY_RSA &&
                  EVP_DigestSignInit(md, NULL, EVP_sha256(), NULL, key) == 1 &&
                  EVP_DigestSign(md, signature, &size, (const unsigned char *)text, strlen(text)) == 1;
        EVP_MD_CTX_free(md);
        EVP_PKEY_free(key);
        BIO_free(bio);
        return ok ? base64url_new(signature, size) : NULL;
}

int jwt_sign(char **jwt, const char *header, const char *claims, const char *pem, struct error *error)
{
        cleanup_free char *first = base64url_new(header, strlen(header));
        cleanup_free char *second = base64url_new(claims, strlen(claims));
        cleanup_free char *text = first != NULL && second != NULL ? format_new("%s.%s", first, second) : NULL;
        if (text == NULL)
                return error_no_memory(error);
        cleanup_with(secret_free_p) char *signature = sign(pem, text);
        if (signature == NULL)
                return error_set(error, STREAMER_EFAILED, "the private key is not an RSA key in PEM");
        *jwt = format_new("%s.%s", text, signature);
        return *jwt != NULL ? 0 : error_no_memory(error);
}

/* ---- reading ---- */

time_t jwt_expires(const char *jwt)
{
        const char *dot = strchr(jwt, '.'), *claims = dot != NULL ? dot + 1 : "";
        size_t len = strcspn(claims, "."), padded = round_up(len, 4);
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        if (len == 0 || claims[len] != '.' || len > CLAIMS_MAX)
                return 0;
        cleanup_free char *text = calloc(1, padded + 1), *json = calloc(1, padded + 1);
        if (text == NULL || json == NULL)
                return 0;
        for (size_t i = 0; i < padded; i++)
                text[i] = i >= len ? '=' : claims[i] == '-' ? '+' : claims[i] == '_' ? '/' : claims[i];
        int n = EVP_DecodeBlock((unsigned char *)json, (const unsigned char *)text, (int)padded);
        if (n < 0 || !json_values_init(&values, json, (size_t)n - (padded - len)))
                return 0;
        uint64_t expires = json_values_number(&values, "exp");
        return expires < INT64_MAX ? (time_t)expires : 0;
}

const char *jwt_expired_note(const char *jwt, char note[JWT_NOTE])
{
        time_t expires = jwt_expires(jwt), now = time(NULL);
        note[0] = '\0';
        if (expires != 0 && expires <= now)
                snprintf(note, JWT_NOTE, " (the token expired %lld s ago, by this machine's clock)",
                         (long long)(now - expires));
        return note;
}

/* ---- writing JSON ---- */

char *json_quote(const char *text)
{
        char *quoted = calloc(1, 6 * strlen(text) + 3), *to = quoted;
        if (quoted == NULL)
                return NULL;
        *to++ = '"';
        for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
                if (*c == '"' || *c == '\\')
                        to += sprintf(to, "\\%c", *c);
                else if (*c < ' ')
                        to += sprintf(to, "\\u%04x", *c);
                else
                        *to++ = (char)*c;
        *to = '"';
        return quoted;
}
