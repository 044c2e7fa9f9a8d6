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
#define HEX (2 * DIGEST + 1)
#define EMPTY_BODY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

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

static int hmac(unsigned char out[DIGEST], const void *key, size_t len, const char *text)
{
        return HMAC(EVP_sha256(), key, (int)len, (const unsigned char *)text, strlen(text), out, NULL) != NULL ? 0 : -1;
}

/* ---- the request ---- */

#define SIGNED_HEADERS 6

struct signing {
        const struct http_request *request;
        const struct aws_keys *keys;
        const char *method, *region, *service;
        char day[16], time[32];
        struct aws_param headers[SIGNED_HEADERS]; /* in the order of names; a value of NULL: not sent */
        char names[128];                          /* of these headers, with ';' between them */
};

/* Contains the token: the caller wipes it. */
static char *canonical_request(const struct signing *s, const char *body_digest)
{
        const char *url = s->request->url, *scheme = strstr(url, "://"), *path = scheme != NULL ? scheme + 3 : url;
        path += strcspn(path, "/?");
        int path_len = (int)strcspn(path, "?");
        const char *query = path[path_len] == '?' ? path + path_len + 1 : "";
        size_t size = strlen(s->method) + strlen(path) + strlen(s->names) + HEX + 9;
        for (size_t i = 0; i < SIGNED_HEADERS; i++)
                size += strlen(s->headers[i].name) + strlen(s->headers[i].value ?: "") + 2;
        char *text = malloc(size), *to = text;
        if (text == NULL)
                return NULL;
        to += sprintf(to, "%s\n%s%.*s\n%s\n", s->method, path_len == 0 ? "/" : "", path_len, path, query);
        for (size_t i = 0; i < SIGNED_HEADERS; i++)
                if (s->headers[i].value != NULL)
                        to += sprintf(to, "%s:%s\n", s->headers[i].name, s->headers[i].value);
        sprintf(to, "\n%s\n%s", s->names, body_digest);
        return text;
}

/* In place, from the secret on: each digest of the chain is the key of the next. */
static int signature(char out[HEX], const struct signing *s, const char *canonical)
{
        const char *const chain[] = {s->day, s->region, s->service, "aws4_request"};
        unsigned char key[DIGEST];
        char digest[HEX], first[4 + AWS_SECRET_MAX];
        size_t secret_len = strlen(s->keys->secret);
        if (secret_len >= AWS_SECRET_MAX || hex_digest(digest, canonical, strlen(canonical)) < 0)
                return -1;
        cleanup_free char *text = format_new("AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", s->time, s->day,
                                             s->region, s->service, digest);
        if (text == NULL)
                return -1;
        memcpy(first, "AWS4", 4);
        memcpy(first + 4, s->keys->secret, secret_len);
        int r = hmac(key, first, 4 + secret_len, chain[0]);
        for (size_t i = 1; r == 0 && i < ARRAY_SIZE(chain); i++)
                r = hmac(key, key, DIGEST, chain[i]);
        if (r == 0)
                r = hmac(key, key, DIGEST, text);
        if (r == 0)
                hex_encode(out, key, DIGEST);
        OPENSSL_cleanse(first, sizeof(first));
        OPENSSL_cleanse(key, sizeof(key));
        return r;
}

/* The value of the header Authorization; NULL: no memory. */
static char *authorization(const struct signing *s)
{
        char body_digest[HEX] = EMPTY_BODY, mac[HEX];
        if (s->request->body != NULL && hex_digest(body_digest, s->request->body, s->request->body_len) < 0)
                return NULL;
        cleanup_with(secret_free_p) char *canonical = canonical_request(s, body_digest);
        if (canonical == NULL || signature(mac, s, canonical) < 0)
                return NULL;
        return format_new("AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=%s, Signature=%s",
                          s->keys->access, s->day, s->region, s->service, s->names, mac);
}

static const char *own_header(const struct http_request *request, const char *name)
{
        return request->headers != NULL ? http_headers_find(request->headers, name) : NULL;
}

int aws_sign(struct http_headers *headers, const struct http_request *request, const char *region, time_t when,
             const struct aws_keys *keys, struct error *error)
{
        cleanup_free char *host = host_header(request->url);
        struct signing s = {.request = request,
                            .keys = keys,
                            .method = request->method ?: "GET",
                            .region = region,
                            .service = request->body != NULL ? "sts" : "s3",
                            .headers = {{"content-type", own_header(request, "Content-Type")},
                                        {"host", host},
                                        {"x-amz-checksum-mode", own_header(request, "x-amz-checksum-mode")},
                                        {"x-amz-content-sha256", request->body == NULL ? EMPTY_BODY : NULL},
                                        {"x-amz-date", s.time},
                                        {"x-amz-security-token", keys->token}}};
        struct tm tm;
        gmtime_r(&when, &tm);
        strftime(s.day, sizeof(s.day), "%Y%m%d", &tm);
        strftime(s.time, sizeof(s.time), "%Y%m%dT%H%M%SZ", &tm);
        for (size_t i = 0; i < SIGNED_HEADERS; i++)
                if (s.headers[i].value != NULL)
                        strcat(strcat(s.names, s.names[0] != '\0' ? ";" : ""), s.headers[i].name);
        cleanup_with(secret_free_p) char *value = host != NULL ? authorization(&s) : NULL;
        if (value == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory for a signature");
        int r = http_headers_add(headers, "Authorization", value, error);
        /* The first three are headers of the request itself. */
        for (size_t i = 3; r == 0 && i < SIGNED_HEADERS; i++)
                if (s.headers[i].value != NULL)
                        r = http_headers_add(headers, s.headers[i].name, s.headers[i].value, error);
        return r;
}
