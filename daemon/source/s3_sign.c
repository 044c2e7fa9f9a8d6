/* SPDX-License-Identifier: Apache-2.0
 *
 * The signature, from the inside out:
 *
 *   canonical request  method, path, query, signed headers, digest of the body
 *   string to sign     time, scope (date/region/s3), digest of the canonical request
 *   key                HMAC chain over the scope's parts, begun with the secret
 *
 * S3 differs from other services in that its paths are encoded once and never normalised: a key may
 * hold "//", "." and "..".
 */
#include "daemon/source/s3_sign.h"

#include "daemon/base/secret.h"
#include "daemon/base/util.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#define DIGEST 32
#define HEX (2 * DIGEST + 1)
#define EMPTY_BODY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* ---- the parts of a URL ---- */

static bool unreserved(unsigned char c)
{
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
               c == '_' || c == '~';
}

char *s3_encode(const char *text, bool slashes)
{
        static const char digits[] = "0123456789ABCDEF";
        char *out = malloc(3 * strlen(text) + 1), *to = out;
        if (out == NULL)
                return NULL;
        for (const unsigned char *from = (const unsigned char *)text; *from != '\0'; from++) {
                if (unreserved(*from) || (slashes && *from == '/')) {
                        *to++ = (char)*from;
                        continue;
                }
                *to++ = '%';
                *to++ = digits[*from >> 4];
                *to++ = digits[*from & 15];
        }
        *to = '\0';
        return out;
}

static int compare_param(const void *a, const void *b)
{
        const struct s3_param *x = a, *y = b;
        int names = strcmp(x->name, y->name);
        return names != 0 ? names : strcmp(x->value, y->value);
}

/* Names are the service's own words, which need no encoding and whose order it does not change. */
static void put_param(FILE *out, const struct s3_param *param, bool first)
{
        cleanup_free char *value = s3_encode(param->value, false);
        if (value != NULL)
                fprintf(out, "%s%s=%s", first ? "" : "&", param->name, value);
}

char *s3_query(struct s3_param *params, size_t n)
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        if (out == NULL)
                return NULL;
        qsort(params, n, sizeof(*params), compare_param);
        for (size_t i = 0; i < n; i++)
                put_param(out, &params[i], i == 0);
        return fclose(out) == 0 ? text : NULL;
}

/* ---- digests ---- */

static void to_hex(char out[HEX], const unsigned char digest[DIGEST])
{
        for (size_t i = 0; i < DIGEST; i++)
                snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static int hex_digest(char out[HEX], const char *text)
{
        unsigned char digest[DIGEST];
        if (EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL) != 1)
                return -1;
        to_hex(out, digest);
        return 0;
}

static int hmac(unsigned char out[DIGEST], const void *key, size_t len, const char *text)
{
        return HMAC(EVP_sha256(), key, (int)len, (const unsigned char *)text, strlen(text), out, NULL) != NULL ? 0 : -1;
}

/* The day's key for a region; in place, each link of the chain the key of the next. */
static int signing_key(unsigned char key[DIGEST], const char *secret, const char *date, const char *region)
{
        const char *const links[] = {region, "s3", "aws4_request"};
        char first[4 + S3_SECRET_MAX];
        size_t len = strlen(secret);
        if (len >= S3_SECRET_MAX)
                return -1;
        memcpy(first, "AWS4", 4);
        memcpy(first + 4, secret, len);
        int r = hmac(key, first, 4 + len, date);
        OPENSSL_cleanse(first, sizeof(first));
        for (size_t i = 0; r == 0 && i < ARRAY_SIZE(links); i++)
                r = hmac(key, key, DIGEST, links[i]);
        return r;
}

/* ---- the request ---- */

struct stamp {
        char date[16], time[32];
};

static void stamp_at(struct stamp *stamp, time_t when)
{
        struct tm tm;
        gmtime_r(&when, &tm);
        strftime(stamp->date, sizeof(stamp->date), "%Y%m%d", &tm);
        strftime(stamp->time, sizeof(stamp->time), "%Y%m%dT%H%M%SZ", &tm);
}

/* In the order of their names, which the signature needs. */
static const char *signed_names(const struct s3_sign_request *request, const struct s3_sign_keys *keys)
{
        if (request->checksum)
                return keys->token != NULL
                               ? "host;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date;x-amz-security-token"
                               : "host;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date";
        return keys->token != NULL ? "host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
                                   : "host;x-amz-content-sha256;x-amz-date";
}

static char *canonical_request(const struct s3_sign_request *request, const struct s3_sign_keys *keys,
                               const struct stamp *stamp)
{
        char *text;
        if (asprintf(&text, "%s\n%s\n%s\nhost:%s\n%sx-amz-content-sha256:%s\nx-amz-date:%s\n%s%s%s\n%s\n%s",
                     request->method, request->path, request->query, request->host,
                     request->checksum ? "x-amz-checksum-mode:ENABLED\n" : "", EMPTY_BODY, stamp->time,
                     keys->token != NULL ? "x-amz-security-token:" : "", keys->token ?: "",
                     keys->token != NULL ? "\n" : "", signed_names(request, keys), EMPTY_BODY) < 0)
                return NULL;
        return text;
}

static int signature(char out[HEX], const struct s3_sign_request *request, const struct s3_sign_keys *keys,
                     const struct stamp *stamp)
{
        char digest[HEX];
        unsigned char key[DIGEST], mac[DIGEST];
        char *canonical = canonical_request(request, keys, stamp);
        cleanup_free char *to_sign = NULL;
        int r = canonical != NULL ? hex_digest(digest, canonical) : -1;
        secret_free(canonical);
        if (r < 0)
                return r;
        if (asprintf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", stamp->time, stamp->date,
                     request->region, digest) < 0) {
                to_sign = NULL;
                return -1;
        }
        r = signing_key(key, keys->secret, stamp->date, request->region);
        if (r == 0)
                r = hmac(mac, key, sizeof(key), to_sign);
        OPENSSL_cleanse(key, sizeof(key));
        if (r == 0)
                to_hex(out, mac);
        return r;
}

int s3_sign(struct s3_signed *out, const struct s3_sign_request *request, const struct s3_sign_keys *keys)
{
        struct stamp stamp;
        char hex[HEX];
        *out = (struct s3_signed){.digest = EMPTY_BODY, .token = keys->token};
        stamp_at(&stamp, request->when);
        memcpy(out->date, stamp.time, sizeof(out->date));
        if (signature(hex, request, keys, &stamp) < 0)
                return -1;
        if (asprintf(&out->authorization,
                     "AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request, SignedHeaders=%s, Signature=%s",
                     keys->access, stamp.date, request->region, signed_names(request, keys), hex) >= 0)
                return 0;
        out->authorization = NULL;
        return -1;
}

void s3_signed_deinit(struct s3_signed *out)
{
        secret_free(out->authorization);
        *out = (struct s3_signed){.date = ""};
}
