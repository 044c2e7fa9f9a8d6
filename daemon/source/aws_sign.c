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
#include "daemon/source/aws_sign.h"

#include "daemon/base/secret.h"
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

static bool unreserved(unsigned char c)
{
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
               c == '_' || c == '~';
}

/* Where it ends, having ended the text. */
static char *encode(char *to, const char *text, bool slashes)
{
        static const char digits[] = "0123456789ABCDEF";
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
        return to;
}

char *aws_encode(const char *text, bool slashes)
{
        char *out = malloc(3 * strlen(text) + 1);
        if (out != NULL)
                encode(out, text, slashes);
        return out;
}

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
                to = encode(to, params[i].value, false);
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

static void stamp_at(struct stamp *stamp, time_t when)
{
        struct tm tm;
        gmtime_r(&when, &tm);
        strftime(stamp->date, sizeof(stamp->date), "%Y%m%d", &tm);
        strftime(stamp->time, sizeof(stamp->time), "%Y%m%dT%H%M%SZ", &tm);
}

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

static void headers_of(struct signed_headers *h, const struct aws_sign_request *request,
                       const struct aws_sign_keys *keys, const struct stamp *stamp, const char *digest)
{
        *h = (struct signed_headers){.n = 0};
        add_header(h, "content-type", request->type);
        add_header(h, "host", request->host);
        add_header(h, "x-amz-checksum-mode", request->checksum ? "ENABLED" : NULL);
        add_header(h, "x-amz-content-sha256", request->service == NULL ? digest : NULL);
        add_header(h, "x-amz-date", stamp->time);
        add_header(h, "x-amz-security-token", keys->token);
}

#define NAMES_SIZE 128 /* of all six */

static void names_of(char names[NAMES_SIZE], const struct signed_headers *h)
{
        names[0] = '\0';
        for (size_t i = 0; i < h->n; i++) {
                strcat(names, i > 0 ? ";" : "");
                strcat(names, h->all[i].name);
        }
}

/* With the token in it: wiped by who frees it. */
static char *canonical_request(const struct aws_sign_request *request, const struct signed_headers *h,
                               const char *names, const char *digest)
{
        size_t size =
                strlen(request->method) + strlen(request->path) + strlen(request->query) + strlen(names) + HEX + 8;
        for (size_t i = 0; i < h->n; i++)
                size += strlen(h->all[i].name) + strlen(h->all[i].value) + 2;
        char *text = malloc(size), *to = text;
        if (text == NULL)
                return NULL;
        to += sprintf(to, "%s\n%s\n%s\n", request->method, request->path, request->query);
        for (size_t i = 0; i < h->n; i++)
                to += sprintf(to, "%s:%s\n", h->all[i].name, h->all[i].value);
        sprintf(to, "\n%s\n%s", names, digest);
        return text;
}

static int string_to_sign(char **text, const struct aws_sign_request *request, const char *canonical,
                          const struct stamp *stamp, const char *service)
{
        char digest[HEX];
        *text = NULL;
        if (hex_digest(digest, canonical) == 0 &&
            asprintf(text, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", stamp->time, stamp->date, request->region,
                     service, digest) >= 0)
                return 0;
        *text = NULL;
        return -1;
}

static int signature(char out[HEX], const struct aws_sign_request *request, const struct aws_sign_keys *keys,
                     const struct stamp *stamp, const char *canonical)
{
        const char *service = request->service ?: "s3";
        unsigned char key[DIGEST], mac[DIGEST];
        cleanup_free char *text = NULL;
        if (string_to_sign(&text, request, canonical, stamp, service) < 0)
                return -1;
        int r = signing_key(key, keys->secret, stamp->date, request->region, service);
        if (r == 0)
                r = hmac(mac, key, sizeof(key), text);
        OPENSSL_cleanse(key, sizeof(key));
        if (r == 0)
                to_hex(out, mac);
        return r;
}

int aws_sign(struct aws_signed *out, const struct aws_sign_request *request, const struct aws_sign_keys *keys)
{
        struct stamp stamp;
        struct signed_headers headers;
        char digest[HEX] = EMPTY_BODY, mac[HEX], names[NAMES_SIZE];
        *out = (struct aws_signed){.digest = request->service == NULL ? EMPTY_BODY : NULL, .token = keys->token};
        stamp_at(&stamp, request->when);
        memcpy(out->date, stamp.time, sizeof(out->date));
        if (request->body != NULL && hex_digest(digest, request->body) < 0)
                return -1;
        headers_of(&headers, request, keys, &stamp, digest);
        names_of(names, &headers);
        char *canonical = canonical_request(request, &headers, names, digest);
        int r = canonical != NULL ? signature(mac, request, keys, &stamp, canonical) : -1;
        secret_free(canonical);
        if (r < 0)
                return r;
        if (asprintf(&out->authorization,
                     "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=%s, Signature=%s",
                     keys->access, stamp.date, request->region, request->service ?: "s3", names, mac) >= 0)
                return 0;
        out->authorization = NULL;
        return -1;
}

void aws_signed_deinit(struct aws_signed *out)
{
        secret_free(out->authorization);
        *out = (struct aws_signed){.date = ""};
}
