/* SPDX-License-Identifier: Apache-2.0
 *
 * The signature, from the inside out:
 *
 *   canonical request  method, path, query, signed headers, digest of the body
 *   string to sign     time, scope (date/region/service), digest of the canonical request
 *   key                HMAC chain over the scope's parts, begun with the secret
 *
 * S3 differs from other services in that its paths are encoded once and never normalised: a key may
 * hold "//", "." and "..".
 */
#include "daemon/source/aws/sigv4.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
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

/* A value may be a secret (a token for STS): it is written to its place at once, and nowhere else. Names are
 * the service's own words, which need no encoding and whose order it does not change. */
char *aws_query(struct aws_param *params, size_t n)
{
        size_t size = 1;
        for (size_t i = 0; i < n; i++)
                size += strlen(params[i].name) + 3 * strlen(params[i].value) + 2;
        char *text = calloc(1, size), *to = text;
        if (text == NULL)
                return NULL;
        qsort(params, n, sizeof(*params), compare_param);
        for (size_t i = 0; i < n; i++) {
                to = stpcpy(stpcpy(stpcpy(to, i > 0 ? "&" : ""), params[i].name), "=");
                to = percent_encode(to, params[i].value, "");
        }
        return text;
}

/* What libcurl sends, and so what the server holds the signature against. */
char *aws_host(const char *url)
{
        const char *scheme = strstr(url, "://"), *host = scheme != NULL ? scheme + 3 : url;
        const char *own = strncasecmp(url, "https:", 6) == 0 ? ":443" : ":80";
        size_t len = strcspn(host, "/?#"), port = strlen(own);
        if (len > port && strncmp(host + len - port, own, port) == 0)
                len -= port;
        return strndup(host, len);
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
static int signing_key(unsigned char key[DIGEST], const char *secret, const char *date, const char *region,
                       const char *service)
{
        const char *const links[] = {region, service, "aws4_request"};
        char first[4 + AWS_SECRET_MAX];
        size_t len = strlen(secret);
        if (len >= AWS_SECRET_MAX)
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

/* What is signed of the headers, in the order of their names, which the signature needs. */
struct signed_headers {
        struct {
                const char *name, *value;
        } all[6];
        size_t n;
};

static void add_header(struct signed_headers *h, const char *name, const char *value)
{
        if (value == NULL)
                return;
        h->all[h->n].name = name;
        h->all[h->n++].value = value;
}

#define NAMES_SIZE 128 /* of all six */

/* Contains the token: the caller wipes it. */
static char *canonical_request(const struct sigv4_sign_request *request, const struct signed_headers *h,
                               const char *names, const char *digest)
{
        const char *scheme = strstr(request->url, "://"), *path = scheme != NULL ? scheme + 3 : request->url;
        path += strcspn(path, "/?");
        int path_len = (int)strcspn(path, "?");
        const char *query = path[path_len] == '?' ? path + path_len + 1 : "";
        size_t size = strlen(request->method) + strlen(path) + strlen(names) + HEX + 9;
        for (size_t i = 0; i < h->n; i++)
                size += strlen(h->all[i].name) + strlen(h->all[i].value) + 2;
        char *text = malloc(size), *to = text;
        if (text == NULL)
                return NULL;
        to += sprintf(to, "%s\n%s%.*s\n%s\n", request->method, path_len == 0 ? "/" : "", path_len, path, query);
        for (size_t i = 0; i < h->n; i++)
                to += sprintf(to, "%s:%s\n", h->all[i].name, h->all[i].value);
        sprintf(to, "\n%s\n%s", names, digest);
        return text;
}

static int signature(char out[HEX], const struct sigv4_sign_request *request, const struct aws_keys *keys,
                     const struct stamp *stamp, const char *canonical)
{
        const char *service = request->service ?: "s3";
        unsigned char key[DIGEST], mac[DIGEST];
        char digest[HEX];
        if (hex_digest(digest, canonical) < 0)
                return -1;
        cleanup_free char *text = format_new("AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", stamp->time,
                                             stamp->date, request->region, service, digest);
        if (text == NULL)
                return -1;
        int r = signing_key(key, keys->secret, stamp->date, request->region, service);
        if (r == 0)
                r = hmac(mac, key, sizeof(key), text);
        OPENSSL_cleanse(key, sizeof(key));
        if (r == 0)
                to_hex(out, mac);
        return r;
}

int aws_sign(struct aws_signed *out, const struct sigv4_sign_request *request, const struct aws_keys *keys)
{
        struct stamp stamp;
        struct tm tm;
        struct signed_headers headers = {.n = 0};
        char digest[HEX] = EMPTY_BODY, mac[HEX], names[NAMES_SIZE] = "";
        cleanup_free char *host = aws_host(request->url);
        *out = (struct aws_signed){.digest = request->service == NULL ? EMPTY_BODY : NULL, .token = keys->token};
        gmtime_r(&request->when, &tm);
        strftime(stamp.date, sizeof(stamp.date), "%Y%m%d", &tm);
        strftime(stamp.time, sizeof(stamp.time), "%Y%m%dT%H%M%SZ", &tm);
        memcpy(out->date, stamp.time, sizeof(out->date));
        if (host == NULL || (request->body != NULL && hex_digest(digest, request->body) < 0))
                return -1;
        add_header(&headers, "content-type", request->type);
        add_header(&headers, "host", host);
        add_header(&headers, "x-amz-checksum-mode", request->checksum ? "ENABLED" : NULL);
        add_header(&headers, "x-amz-content-sha256", out->digest);
        add_header(&headers, "x-amz-date", stamp.time);
        add_header(&headers, "x-amz-security-token", keys->token);
        for (size_t i = 0; i < headers.n; i++)
                strcat(strcat(names, i > 0 ? ";" : ""), headers.all[i].name);
        char *canonical = canonical_request(request, &headers, names, digest);
        int r = canonical != NULL ? signature(mac, request, keys, &stamp, canonical) : -1;
        secret_free(canonical);
        if (r == 0)
                out->authorization = format_new(
                        "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=%s, Signature=%s",
                        keys->access, stamp.date, request->region, request->service ?: "s3", names, mac);
        return out->authorization != NULL ? 0 : -1;
}

int aws_sign_headers(struct http_headers *headers, const struct sigv4_sign_request *request,
                     const struct aws_keys *keys, struct error *error)
{
        struct aws_signed out;
        if (aws_sign(&out, request, keys) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory for a signature");
        int r = http_headers_add(headers, "Authorization", out.authorization, error);
        if (r == 0 && out.digest != NULL)
                r = http_headers_add(headers, "x-amz-content-sha256", out.digest, error);
        if (r == 0)
                r = http_headers_add(headers, "x-amz-date", out.date, error);
        if (r == 0 && out.token != NULL)
                r = http_headers_add(headers, "x-amz-security-token", out.token, error);
        aws_signed_deinit(&out);
        return r;
}

void aws_signed_deinit(struct aws_signed *out)
{
        secret_free(out->authorization);
        *out = (struct aws_signed){.date = ""};
}
