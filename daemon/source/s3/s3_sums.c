/* SPDX-License-Identifier: Apache-2.0
 *
 * Both are requested at once. The list has precedence, since the publisher of the files wrote it; the store's checksums
 * add what it lacks. Where both have a digest they must agree: a difference fails the load.
 */
#include "daemon/source/s3/s3_sums.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"

#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#define HEADER "x-amz-checksum-sha256"

/* ---- the list ---- */

/* A client that may not list gets 403 for a key that does not exist. */
static int fetch_list(const struct s3_sums_where *where, struct http_fetch *fetch, char **url, char **shown,
                      struct error *error)
{
        static const int absent[] = {403, 404, 0};
        *url = format_new("%s/%s" SUMS_NAME, where->base, where->prefix);
        *shown = format_new("%s" SUMS_NAME, where->shown);
        *fetch = (struct http_fetch){.request = {.url = *url, .shown = *shown, .access = where->access},
                                     .max_body = SUMS_MAX,
                                     .fine = where->listed ? NULL : absent};
        return *url != NULL && *shown != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
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
        int r = sums_set_digest(object, hex, "the store's checksum", &valid, error);
        if (r == 0)
                log_debug("SHA-256 as the store keeps it (%s)", object->path);
        return r;
}

/* The URL of an object is its path below the folder, behind the folder's URL. */
static int fetch_checksum(const struct s3_sums_where *where, const struct http_headers *headers,
                          const struct object *object, struct http_fetch *fetch, char **url, struct error *error)
{
        cleanup_free char *name = http_url_encode(object->path + strlen(where->shown), "/");
        *url = name != NULL ? format_new("%s/%s%s", where->base, where->prefix, name) : NULL;
        *fetch = (struct http_fetch){.request = {.method = "HEAD",
                                                 .url = *url,
                                                 .shown = object->path,
                                                 .headers = headers,
                                                 .access = where->access}};
        return *url != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

/* ---- both ---- */

/* For each object a request and its URL, and one of each for the list. */
static int find(const struct s3_sums_where *where, struct object *objects, size_t n, struct http_fetch *fetches,
                char **urls, struct error *error)
{
        bool list = !where->listed || where->has_sums;
        struct http_headers headers = {.n = 0};
        cleanup_free char *shown = NULL;
        int r = http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = fetch_checksum(where, &headers, &objects[i], &fetches[i], &urls[i], error);
        if (r == 0 && list)
                r = fetch_list(where, &fetches[n], &urls[n], &shown, error);
        if (r == 0)
                r = http_fetch(where->http, fetches, list ? n + 1 : n, error);
        struct text text = {.data = fetches[n].answer.body, .size = fetches[n].answer.body_len};
        if (r == 0 && list && fetches[n].answer.status < 300 && text.data != NULL)
                r = sums_apply(&text, shown, objects, n, error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = take_checksum(&objects[i], &fetches[i], error);
        http_headers_deinit(&headers);
        return r;
}

int s3_sums_find(const struct s3_sums_where *where, struct object *objects, size_t n, struct error *error)
{
        struct http_fetch *fetches = calloc(n + 1, sizeof(*fetches));
        char **urls = calloc(n + 1, sizeof(*urls));
        int r = fetches != NULL && urls != NULL ? find(where, objects, n, fetches, urls, error)
                                                : error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; fetches != NULL && urls != NULL && i <= n; i++) {
                http_fetch_deinit(&fetches[i]);
                free(urls[i]);
        }
        free(fetches);
        free(urls);
        return r < 0 ? r
                     : sums_require(objects, n, "a " SUMS_NAME " with its prefix, and no checksum of the store's",
                                    error);
}
