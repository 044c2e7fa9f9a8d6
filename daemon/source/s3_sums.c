/* SPDX-License-Identifier: Apache-2.0
 *
 * The list goes first, since whoever wrote the files has written it; the store's own checksums fill in
 * what it does not hold. Where both tell, they must agree: two publishers that differ fail the load.
 */
#include "daemon/source/s3_sums.h"

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/source/s3_sign.h"

#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#define HEADER "x-amz-checksum-sha256"
#define AT_ONCE 64

/* ---- the list ---- */

static int parse_list(const struct http_fetch *fetch, const char *shown, struct object *objects, size_t n,
                      struct error *error)
{
        struct text text = {.data = fetch->answer.body, .size = fetch->answer.body_len};
        return sums_take(&text, shown, objects, n, error);
}

static int read_list(const struct s3_sums_where *where, struct object *objects, size_t n, struct error *error)
{
        cleanup_free char *url = NULL, *shown = NULL;
        if (where->listed && !where->has_sums)
                return 0;
        if (asprintf(&url, "%s/%s" SUMS_NAME, where->base, where->prefix) < 0 ||
            asprintf(&shown, "%s" SUMS_NAME, where->shown) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        struct http_fetch fetch = {.request = {.url = url, .shown = shown, .access = where->access},
                                   .max_body = SUMS_MAX};
        int r = http_fetch(where->http, &fetch, 1, error);
        if (r == 0 && fetch.answer.body != NULL)
                r = parse_list(&fetch, shown, objects, n, error);
        http_fetch_deinit(&fetch);
        /* To who may not list, a key that is not there is one that may not be read. */
        bool absent = r == STREAMER_ENOENT || r == STREAMER_EPERM;
        return absent && !where->listed ? 0 : r;
}

/* ---- the store's checksums ---- */

bool s3_sums_decode(const char *value, char hex[65])
{
        unsigned char digest[33];
        /* 32 bytes are 44 characters; "...=-12" is a checksum of checksums of 12 parts. */
        if (strlen(value) != 44 || value[43] != '=' ||
            EVP_DecodeBlock(digest, (const unsigned char *)value, 44) != (int)sizeof(digest))
                return false;
        for (size_t i = 0; i < 32; i++)
                snprintf(hex + 2 * i, 3, "%02x", digest[i]);
        return true;
}

static int take_checksum(struct object *object, const struct http_fetch *fetch, struct error *error)
{
        const char *value = http_headers_find(&fetch->answer.headers, HEADER);
        const char *type = http_headers_find(&fetch->answer.headers, "x-amz-checksum-type");
        char hex[65];
        bool valid;
        bool whole = type == NULL || strcasecmp(type, "FULL_OBJECT") == 0;
        if (value == NULL || !whole || !s3_sums_decode(value, hex))
                return 0;
        int r = sums_publish(object, hex, "the store's checksum", &valid, error);
        if (r == 0)
                log_debug("SHA-256 as the store keeps it (%s)", object->path);
        return r;
}

/* URLs of objects are their paths behind the folder's. */
static char *object_url(const struct s3_sums_where *where, const struct object *object)
{
        cleanup_free char *name = s3_encode(object->path + strlen(where->shown), true);
        char *url = NULL;
        return name == NULL || asprintf(&url, "%s/%s%s", where->base, where->prefix, name) < 0 ? NULL : url;
}

static int read_checksums(const struct s3_sums_where *where, const struct http_headers *headers, struct object *objects,
                          size_t n, struct error *error)
{
        struct http_fetch fetches[AT_ONCE] = {{.max_body = 0}};
        char *urls[AT_ONCE] = {NULL};
        int r = 0;
        for (size_t i = 0; i < n; i++) {
                urls[i] = object_url(where, &objects[i]);
                fetches[i].request = (struct http_request){.method = "HEAD",
                                                           .url = urls[i],
                                                           .shown = objects[i].path,
                                                           .headers = headers,
                                                           .access = where->access};
                if (urls[i] == NULL)
                        r = error_set(error, STREAMER_ENOMEM, "no memory");
        }
        if (r == 0)
                r = http_fetch(where->http, fetches, n, error);
        for (size_t i = 0; i < n; i++) {
                if (r == 0)
                        r = take_checksum(&objects[i], &fetches[i], error);
                http_fetch_deinit(&fetches[i]);
                free(urls[i]);
        }
        return r;
}

int s3_sums_find(const struct s3_sums_where *where, struct object *objects, size_t n, struct error *error)
{
        struct http_headers headers = {.n = 0};
        int r = read_list(where, objects, n, error);
        if (r == 0)
                r = http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", error);
        for (size_t i = 0; r == 0 && i < n; i += AT_ONCE)
                r = read_checksums(where, &headers, objects + i, n - i < AT_ONCE ? n - i : AT_ONCE, error);
        http_headers_deinit(&headers);
        return r < 0 ? r
                     : sums_require(objects, n, "a " SUMS_NAME " with its prefix, and no checksum of the store's",
                                    error);
}
