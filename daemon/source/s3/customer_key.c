/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/s3/customer_key.h"

#include "daemon/base/text/base64.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <openssl/evp.h>

#define BYTES 32u
#define MD5_BYTES 16u
#define FILE_MAX KiB

struct customer_key {
        char key[4 * ((BYTES + 2) / 3) + 1]; /* in base64, as the next */
        char md5[4 * ((MD5_BYTES + 2) / 3) + 1];
};

/* The file's bytes are the key, or its text is. In place. */
static bool decode(struct text *text)
{
        size_t len = text->size, decoded;
        if (len == BYTES)
                return true;
        while (len > 0 && strchr(" \t\r\n", text->data[len - 1]) != NULL)
                len--;
        return base64_decode(text->data, len, BASE64_RELAXED, &decoded) && decoded == BYTES;
}

static int encode(struct customer_key *key, const void *bytes, struct error *error)
{
        unsigned char md5[MD5_BYTES];
        if (EVP_Digest(bytes, BYTES, md5, NULL, EVP_md5(), NULL) != 1)
                return error_set(error, STREAMER_EFAILED, "sse_c_key: OpenSSL does not compute MD5, which S3 takes");
        EVP_EncodeBlock((unsigned char *)key->key, bytes, BYTES);
        EVP_EncodeBlock((unsigned char *)key->md5, md5, MD5_BYTES);
        return 0;
}

int customer_key_read(struct customer_key **out, const char *setting, struct error *error)
{
        cleanup_free char *path = NULL;
        cleanup_with(secret_keys_deinit) struct text text = {0};
        int r = secret_location(setting, &path, error) ?: secret_read_keys("sse_c_key", path, FILE_MAX, &text, error);
        if (r < 0)
                return r;
        if (!decode(&text))
                return error_set(error, STREAMER_EFAILED,
                                 "sse_c_key: neither %u bytes nor these in base64: a key of AES256 (%s)", BYTES, path);
        struct customer_key *key = secret_map(sizeof(*key));
        if (key == NULL)
                return error_no_memory(error);
        r = encode(key, text.data, error);
        *out = r == 0 ? key : customer_key_free(key);
        return r;
}

struct customer_key *customer_key_free(struct customer_key *key)
{
        secret_unmap(key, sizeof(*key));
        return NULL;
}

bool customer_key_may_go(const char *url)
{
        struct http_url parsed;
        return http_url_parse(&parsed, url) == 0 && (parsed.tls || http_url_loopback(&parsed));
}

int customer_key_add(const struct customer_key *key, struct http_headers *headers, struct error *error)
{
        return http_headers_add(headers, CUSTOMER_KEY_ALGORITHM, "AES256", error)
                       ?: http_headers_add(headers, CUSTOMER_KEY, key->key, error)
                                  ?: http_headers_add(headers, CUSTOMER_KEY_MD5, key->md5, error);
}
