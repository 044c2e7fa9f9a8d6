/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening remote objects: no HEAD goes before. The first answer tells size, version and whether the
 * server knows ranges, and brings the beginning, which for a safetensors file is its header:
 *
 *   first bytes of all, side by side > the rest of the headers that are longer > open
 *
 * What is kept of them is the header alone, so that 4,096 shards do not cost their speculative bytes in
 * memory.
 */
#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/io/object_remote.h"
#include "daemon/io/http_policy.h"

#include <endian.h>
#include <string.h>

#define LENGTH_BYTES 8u /* of a header's length, before the header */
/* Where nobody knows how long a header is. Of usual models 17 KiB (1B, one file), 33 KiB (8B), 3 KiB (70B, one of
 * 30 shards), 74 KiB (671B, 164 shards), 82 KiB (8B AWQ), 84 KiB (70B, one file), 139 KiB (30B MoE), 169 KiB (8B in
 * four bits), 270 KiB (70B GPTQ, one file), 294 KiB (1T, 62 shards), 6.1 MiB (50,000 experts' tensors in one file).
 * On a link of 200 ms, as the tests' proxy plays one whose window begins at 14,600 bytes, a header is there after
 *
 *   asked for    32 KiB  64 KiB  128 KiB  256 KiB  512 KiB
 *   33 KiB       0.61 s  0.60 s   0.80 s   1.00 s   1.20 s
 *   84 KiB         0.80    0.80     0.82     1.01     1.20
 *   169 KiB        0.81    1.01     1.04     1.07     1.20
 *   294 KiB        1.01    1.01     1.20     1.20     1.21
 *
 * since the window grows by either request; but each second request costs what a store takes to its first byte, tens
 * of milliseconds, however near it is. 128 KiB hold most headers and are a millisecond near by. */
#define FIRST_BYTES (128 * KiB)
/* An index or a list is small, or all of it is wanted anyway. */
#define TEXT_BYTES (16 * MiB)
/* A longer header is left to whoever reads it, with the bounds of its own. */
#define HEADER_AHEAD (16 * MiB)

/* ---- asking ---- */

static int object_new(struct object *object, struct http *http, const struct object_url *url, struct error *error)
{
        struct remote *remote = calloc(1, sizeof(*remote));
        *object = (struct object){.ops = &object_http_ops, .path = strdup(url->shown), .remote = remote};
        if (remote != NULL) {
                pthread_mutex_init(&remote->mutex, NULL);
                remote->http = http;
                remote->access = http_access_ref(url->access);
                remote->url = strdup(url->url);
                remote->etag = url->etag != NULL ? strdup(url->etag) : NULL;
                remote->atomic = url->atomic;
                remote->text = url->text;
        }
        if (object->path != NULL && remote != NULL && remote->url != NULL &&
            (url->etag == NULL || remote->etag != NULL))
                return 0;
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

/* Of a safetensors file the bytes up to its data; `n` where they do not tell. */
static uint64_t header_end(const unsigned char *bytes, uint64_t n)
{
        uint64_t header;
        if (n < LENGTH_BYTES)
                return n;
        memcpy(&header, bytes, sizeof(header));
        header = le64toh(header);
        return header <= UINT64_MAX - LENGTH_BYTES ? header + LENGTH_BYTES : n;
}

/* At once, while others still come: what is not kept is not held. */
static void keep_first(struct http_fetch *fetch)
{
        struct remote *remote = remote_of(fetch->context);
        unsigned char *bytes = (unsigned char *)fetch->answer.body;
        if (fetch->got == 0)
                return;
        uint64_t end = remote->text ? fetch->got : header_end(bytes, fetch->got);
        remote->n_first = end < fetch->got ? end : fetch->got;
        remote->first = realloc(bytes, remote->n_first) ?: bytes;
        fetch->answer.body = NULL;
        fetch->answer.body_len = 0;
}

int object_http_ask(struct http *http, const struct object_url *url, struct object *object, struct http_fetch *fetch,
                    struct error *error)
{
        static const int absent[] = {404, 410, 0};
        int r = object_new(object, http, url, error);
        if (r < 0)
                return r;
        uint64_t first = url->header > 0 && url->header < HEADER_AHEAD ? url->header : FIRST_BYTES;
        *fetch = (struct http_fetch){.max_body = url->text ? TEXT_BYTES : first,
                                     .empty_ok = true,
                                     .fine = url->optional ? absent : NULL,
                                     .done = keep_first,
                                     .context = object};
        remote_request(object, 0, fetch->max_body, &fetch->request);
        return 0;
}

/* ---- answers ---- */

static char *copy_header(const struct http_answer *answer, const char *name)
{
        const char *value = http_headers_find(&answer->headers, name);
        return value != NULL ? strdup(value) : NULL;
}

int object_http_answered(struct object *object, const struct http_fetch *fetch, struct error *error)
{
        struct remote *remote = remote_of(object);
        const struct http_answer *answer = &fetch->answer;
        const char *range = http_headers_find(&answer->headers, "Content-Range");
        uint64_t total = answer->total;
        if (answer->status >= 400 && answer->status != 416) {
                object_deinit(object);
                return 0;
        }
        /* Of nothing there is no range. */
        if (answer->status == 416 && range != NULL)
                http_unsatisfied_range(range, &total);
        if (total == UINT64_MAX)
                return error_set(error, STREAMER_EFAILED, "the server does not tell its size (%s)", object->path);
        object->version.size = total;
        remote->ranges = answer->ranged;
        if (remote->etag == NULL)
                remote->etag = copy_header(answer, "ETag");
        remote->modified = copy_header(answer, "Last-Modified");
        remote->led = answer->led != NULL ? strdup(answer->led) : NULL;
        return remote_check_answer(object, answer, error);
}

static void log_kind(const struct object *object)
{
        const struct remote *remote = object->remote;
        if (object_streamed(object) && !remote->text)
                log_warn("the server knows no ranges: read in one stream (%s)", object->path);
        if (remote->etag == NULL)
                log_info("the server sends no ETag: a version is %s (%s)",
                         remote->modified != NULL ? "the size and Last-Modified" : "the size alone", object->path);
}

/* ---- longer headers ---- */

/* 0 where all of it is there, or it is none that could be. */
static uint64_t missing_header(const struct object *object)
{
        const struct remote *remote = object->ops != NULL ? remote_of(object) : NULL;
        if (remote == NULL || remote->text || remote->n_first < LENGTH_BYTES)
                return 0;
        uint64_t end = header_end(remote->first, remote->n_first);
        bool sane = end <= object->version.size && end <= HEADER_AHEAD;
        return sane && end > remote->n_first ? end - remote->n_first : 0;
}

static int read_rest(struct object_range *range, struct object *object, struct error *error)
{
        struct remote *remote = remote_of(object);
        uint64_t more = missing_header(object);
        unsigned char *first = realloc(remote->first, remote->n_first + more);
        if (first == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        remote->first = first;
        *range = (struct object_range){
                .object = object, .offset = remote->n_first, .len = more, .to = first + remote->n_first};
        return 0;
}

static int read_headers(struct object *objects, size_t n, struct error *error)
{
        struct object_range *ranges = calloc(n, sizeof(*ranges));
        size_t longer = 0;
        int r = ranges != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; r == 0 && i < n; i++)
                if (missing_header(&objects[i]) > 0)
                        r = read_rest(&ranges[longer++], &objects[i], error);
        if (r == 0)
                r = object_read_ranges(ranges, longer, error);
        for (size_t i = 0; r == 0 && i < longer; i++)
                ranges[i].object->remote->n_first += ranges[i].len;
        free(ranges);
        return r;
}

/* ---- all of them ---- */

int object_http_open(struct http *http, const struct object_url *urls, size_t n, struct object *objects,
                     struct error *error)
{
        struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        int r = fetches != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
        memset(objects, 0, n * sizeof(*objects));
        for (size_t i = 0; r == 0 && i < n; i++)
                r = object_http_ask(http, &urls[i], &objects[i], &fetches[i], error);
        if (r == 0)
                r = http_fetch(http, fetches, n, error);
        for (size_t i = 0; fetches != NULL && i < n; i++) {
                if (r == 0)
                        r = object_http_answered(&objects[i], &fetches[i], error);
                http_fetch_deinit(&fetches[i]);
        }
        free(fetches);
        if (r == 0)
                r = read_headers(objects, n, error);
        for (size_t i = 0; r < 0 && i < n; i++)
                object_deinit(&objects[i]);
        if (r == 0 && n > 0 && objects[0].ops != NULL)
                log_kind(&objects[0]);
        return r;
}
