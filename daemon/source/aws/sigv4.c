/* SPDX-License-Identifier: Apache-2.0
 *
 * The signature, from the inside out:
 *
 *   canonical request  method, path, query, signed headers, digest of the body
 *   string to sign     time, scope (date/region/service), digest of the canonical request
 *   key                HMAC chain over the scope's parts, begun with the secret
 *
 * Ours, and not libcurl's (CURLOPT_AWS_SIGV4): the headers that libcurl signs, and how it encodes and sorts a query,
 * differ between its releases from 7.81 to 8.19, all of which distributions have.
 *
 * S3 differs from other services in that its paths are encoded once and never normalised: a key may
 * hold "//", "." and "..".
 */
#include "daemon/source/aws/sigv4.h"

#include "daemon/base/hash.h"
#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <strings.h>

#define DIGEST 32
#define CUSTOMER "x-amz-server-side-encryption-customer-"
#define HEX (2 * DIGEST + 1)

/* ---- the parts of a URL ---- */

static int compare_param(const void *a, const void *b)
{
        const struct aws_param *x = a, *y = b;
        int names = strcmp(x->name, y->name);
        return names != 0 ? names : strcmp(x->value, y->value);
}

/* A value may be a secret (a token for STS): it is written to its place at once, without a copy. Names are
 * the service's own words, which need no encoding and whose order it does not change. */
char *aws_query(struct aws_param *params, size_t n)
{
        size_t size = 1, used = 0;
        for (size_t i = 0; i < n; i++)
                if (params[i].value != NULL) {
                        size += strlen(params[i].name) + 3 * strlen(params[i].value) + 2;
                        params[used++] = params[i];
                }
        char *text = calloc(1, size), *to = text;
        if (text == NULL)
                return NULL;
        qsort(params, used, sizeof(*params), compare_param);
        for (size_t i = 0; i < used; i++) {
                to = stpcpy(stpcpy(stpcpy(to, i > 0 ? "&" : ""), params[i].name), "=");
                to = percent_encode(to, params[i].value, "");
        }
        return text;
}

/* As libcurl sends it, and so as the server verifies the signature: without the scheme's own port. malloc'd. */
static char *host_header(const char *url)
{
        const char *scheme = strstr(url, "://"), *host = scheme != NULL ? scheme + 3 : url;
        const char *own = strncasecmp(url, "https:", 6) == 0 ? ":443" : ":80";
        size_t len = strcspn(host, "/?#"), port = strlen(own);
        if (len > port && strncmp(host + len - port, own, port) == 0)
                len -= port;
        return strndup(host, len);
}

/* ---- digests ---- */

static int hex_digest(char out[HEX], const void *data, size_t size)
{
        unsigned char digest[DIGEST];
        if (EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL) != 1)
                return -1;
        hex_encode(out, digest, DIGEST);
        return 0;
}

static int hmac(unsigned char out[DIGEST], const void *key, size_t key_len, const char *text, size_t len)
{
        return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, len, out, NULL) != NULL ? 0 : -1;
}

/* ---- the request ---- */

/* In the order of names; a value of NULL: not sent. Those that the request or `headers` have are given;
 * those from FIRST_ADDED on are added. */
#define SIGNED_HEADERS 9
#define FIRST_ADDED 3
#define ADDED 3

/* `names`: of the headers that are sent, with ';' between them. Contains the token: the caller wipes it. */
static char *canonical_request(const struct http_request *request, const struct aws_param headers[SIGNED_HEADERS],
                               const char *names, const char *body_digest)
{
        const char *method = request->method ?: "GET";
        const char *scheme = strstr(request->url, "://"), *path = scheme != NULL ? scheme + 3 : request->url;
        path += strcspn(path, "/?");
        int path_len = (int)strcspn(path, "?");
        const char *query = path[path_len] == '?' ? path + path_len + 1 : "";
        size_t size = strlen(method) + strlen(path) + strlen(names) + HEX + 9;
        for (size_t i = 0; i < SIGNED_HEADERS; i++)
                size += strlen(headers[i].name) + strlen(headers[i].value ?: "") + 2;
        char *text = malloc(size), *to = text;
        if (text == NULL)
                return NULL;
        to += sprintf(to, "%s\n%s%.*s\n%s\n", method, path_len == 0 ? "/" : "", path_len, path, query);
        for (size_t i = 0; i < SIGNED_HEADERS; i++)
                if (headers[i].value != NULL)
                        to += sprintf(to, "%s:%s\n", headers[i].name, headers[i].value);
        sprintf(to, "\n%s\n%s", names, body_digest);
        return text;
}

/* From the secret on, each digest of the chain over the scope's parts is the key of the next. */
static int sign(char out[HEX], const char *secret, const char *scope, const char *text)
{
        unsigned char key[DIGEST];
        char first[4 + CREDENTIAL_SECRET_MAX];
        if (strlen(secret) >= CREDENTIAL_SECRET_MAX)
                return -1;
        memcpy(first, "AWS4", 4);
        memcpy(first + 4, secret, strlen(secret));
        size_t len = strcspn(scope, "/");
        int r = hmac(key, first, 4 + strlen(secret), scope, len);
        for (const char *part = scope + len; r == 0 && *part == '/'; part += len) {
                len = strcspn(++part, "/");
                r = hmac(key, key, DIGEST, part, len);
        }
        r = r ?: hmac(key, key, DIGEST, text, strlen(text));
        if (r == 0)
                hex_encode(out, key, DIGEST);
        OPENSSL_cleanse(first, sizeof(first));
        OPENSSL_cleanse(key, sizeof(key));
        return r;
}

static const char *given(const struct http_headers *headers, const struct http_request *request, const char *name)
{
        return http_headers_find(headers, name)
                       ?: (request->headers != NULL ? http_headers_find(request->headers, name) : NULL);
}

int aws_sign(struct http_headers *headers, const struct http_request *request, const char *region, time_t when,
             const struct credential *keys, struct error *error)
{
        bool sts = request->body != NULL;
        char date[32], names[320] = "", body_digest[HEX], digest[HEX], signature[HEX];
        cleanup_free char *host = host_header(request->url);
        const struct aws_param used[SIGNED_HEADERS] = {
                {"content-type", given(headers, request, "Content-Type")},
                {"host", host},
                {"x-amz-checksum-mode", given(headers, request, "x-amz-checksum-mode")},
                {"x-amz-content-sha256", sts ? NULL : body_digest},
                {"x-amz-date", date},
                {"x-amz-security-token", keys->token},
                {CUSTOMER "algorithm", given(headers, request, CUSTOMER "algorithm")},
                {CUSTOMER "key", given(headers, request, CUSTOMER "key")},
                {CUSTOMER "key-md5", given(headers, request, CUSTOMER "key-MD5")}};
        struct tm tm;
        strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", gmtime_r(&when, &tm));
        for (size_t i = 0; i < SIGNED_HEADERS; i++)
                if (used[i].value != NULL)
                        strcat(strcat(names, names[0] != '\0' ? ";" : ""), used[i].name);
        bool hashed = hex_digest(body_digest, request->body ?: "", request->body_len) == 0;
        cleanup_free char *scope = format_new("%.8s/%s/%s/aws4_request", date, region, sts ? "sts" : "s3");
        cleanup_with(secret_free_p) char *canonical =
                hashed ? canonical_request(request, used, names, body_digest) : NULL;
        hashed = canonical != NULL && hex_digest(digest, canonical, strlen(canonical)) == 0;
        cleanup_free char *text = hashed ? format_new("AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, digest) : NULL;
        bool ok = host != NULL && scope != NULL && text != NULL && sign(signature, keys->secret, scope, text) == 0;
        cleanup_with(secret_free_p) char *value =
                ok ? format_new("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", keys->access,
                                scope, names, signature)
                   : NULL;
        if (value == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory for a signature");
        int r = http_headers_add(headers, "Authorization", value, error);
        for (size_t i = FIRST_ADDED; r == 0 && i < FIRST_ADDED + ADDED; i++)
                if (used[i].value != NULL)
                        r = http_headers_add(headers, used[i].name, used[i].value, error);
        return r;
}
