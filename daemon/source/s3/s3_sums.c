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

static int set_checksum(struct object *object, const struct http_fetch *fetch, struct error *error)
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

/* A request for each object, and one for the list. */
static int prepare(const struct s3_sums_request *request, const struct http_headers *headers,
                   const struct object *objects, size_t n, struct http_fetch *fetches, struct error *error)
{
        /* A client that may not list gets 403 for a key that does not exist. */
        static const int absent[] = {403, 404, 0};
        fetches[n].request.access = request->access;
        fetches[n].request.shown = format_new("%s" SUMS_NAME, request->shown);
        fetches[n].request.url = format_new("%s/%s" SUMS_NAME, request->base, request->prefix);
        fetches[n].max_body = SUMS_MAX;
        fetches[n].fine = request->listed ? NULL : absent;
        bool ok = fetches[n].request.url != NULL && fetches[n].request.shown != NULL;
        for (size_t i = 0; ok && i < n; i++) {
                /* The URL of an object is its path below the folder, behind the folder's URL. */
                cleanup_free char *name = http_url_encode(objects[i].path + strlen(request->shown), "/");
                fetches[i].request = (struct http_request){
                        .method = "HEAD",
                        .url = name != NULL ? format_new("%s/%s%s", request->base, request->prefix, name) : NULL,
                        .shown = objects[i].path,
                        .headers = headers,
                        .access = request->access};
                ok = fetches[i].request.url != NULL;
        }
        return ok ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

int s3_sums_find(const struct s3_sums_request *request, struct object *objects, size_t n, struct error *error)
{
        bool list = !request->listed || request->has_sums;
        struct http_headers headers = {.n = 0};
        struct http_fetch *fetches = calloc(n + 1, sizeof(*fetches));
        if (fetches == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        const struct http_fetch *last = &fetches[n];
        int r = http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", error);
        if (r == 0)
                r = prepare(request, &headers, objects, n, fetches, error);
        if (r == 0)
                r = http_fetch(request->http, fetches, list ? n + 1 : n, error);
        struct text text = {.data = last->answer.body, .size = last->answer.body_len};
        if (r == 0 && list && last->answer.status < 300 && text.data != NULL)
                r = sums_apply(&text, last->request.shown, objects, n, error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = set_checksum(&objects[i], &fetches[i], error);
        free((char *)(uintptr_t)last->request.shown);
        for (size_t i = 0; i <= n; i++) {
                free((char *)(uintptr_t)fetches[i].request.url);
                http_fetch_deinit(&fetches[i]);
        }
        free(fetches);
        http_headers_deinit(&headers);
        return r < 0 ? r
                     : sums_require(objects, n, "a " SUMS_NAME " with its prefix, and no checksum of the store's",
                                    error);
}
