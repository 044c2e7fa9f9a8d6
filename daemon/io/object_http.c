/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening asks for the first bytes of each object. What is kept of them is the safetensors header (as
 * far as it came), so that 4,096 shards do not cost their speculative bytes in memory.
 */
#include "daemon/io/object_http.h"

#include "daemon/base/fd.h"
#include "daemon/base/hash.h"
#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"
#include "daemon/io/object_remote.h"

#include <endian.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

/* Objects that are asked for at once: bounds the memory for first bytes. */
#define OPEN_AT_ONCE 32u
#define LENGTH_BYTES 8u /* of a header's length, before the header */
/* What is asked for before a header's length is known: on a link of 10 Gbit/s they cost half a
 * millisecond, far less than a second request would. */
#define FIRST_BYTES (512 * KiB)

struct remote {
        struct http *http;
        struct http_access *access;
        char *url, *etag, *modified; /* etag, modified: NULL where there is none */
        bool ranges;
        unsigned char *first; /* the object's beginning */
        uint64_t n_first;
        pthread_mutex_t mutex;
        char *led; /* where redirects led last; NULL */
};

static struct remote *remote_of(const struct object *object)
{
        require(object->ops == &object_http_ops);
        return object->remote;
}

/* ---- requests ---- */

void remote_request(const struct object *object, uint64_t offset, uint64_t len, struct http_request *request)
{
        const struct remote *remote = remote_of(object);
        *request = (struct http_request){
                .url = remote->url, .shown = object->path, .offset = offset, .len = len, .access = remote->access};
        if (remote->etag != NULL && http_etag_strong(remote->etag))
                request->if_match = remote->etag;
}

struct http *remote_http(const struct object *object)
{
        return remote_of(object)->http;
}

char *remote_led(const struct object *object)
{
        struct remote *remote = remote_of(object);
        pthread_mutex_lock(&remote->mutex);
        char *led = remote->led != NULL ? strdup(remote->led) : NULL;
        pthread_mutex_unlock(&remote->mutex);
        return led;
}

void remote_set_led(const struct object *object, const char *led)
{
        struct remote *remote = remote_of(object);
        pthread_mutex_lock(&remote->mutex);
        free(remote->led);
        remote->led = led != NULL ? strdup(led) : NULL;
        pthread_mutex_unlock(&remote->mutex);
}

/* ---- versions ---- */

static bool differs(const char *was, const char *is)
{
        return was != NULL && is != NULL && strcmp(was, is) != 0;
}

static int check_encoding(const struct object *object, const struct http_answer *answer, struct error *error)
{
        const char *encoding = http_headers_find(&answer->headers, "Content-Encoding");
        if (encoding == NULL || strcmp(encoding, "identity") == 0)
                return 0;
        return error_set(error, STREAMER_EFAILED, "the server sends it encoded: %s (%s)", encoding, object->path);
}

int remote_check_answer(const struct object *object, const struct http_answer *answer, struct error *error)
{
        const struct remote *remote = remote_of(object);
        const char *what = NULL;
        if (answer->total != UINT64_MAX && answer->total != object->version.size)
                what = "size";
        else if (differs(remote->etag, http_headers_find(&answer->headers, "ETag")))
                what = "ETag";
        else if (remote->etag == NULL &&
                 differs(remote->modified, http_headers_find(&answer->headers, "Last-Modified")))
                what = "Last-Modified";
        if (what == NULL)
                return check_encoding(object, answer, error);
        return error_set(error, STREAMER_EFAILED, "the object was replaced while it was read: another %s (%s)", what,
                         object->path);
}

/* One byte of each, or where ranges are unknown its headers alone: links that are signed for GET do not
 * serve HEAD. */
static int http_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        unsigned char *bytes = calloc(n, 1);
        int r = fetches != NULL && bytes != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; r == 0 && i < n; i++) {
                const struct remote *remote = remote_of(objects[i]);
                bool one_byte = remote->ranges && objects[i]->version.size > 0;
                remote_request(objects[i], 0, one_byte ? 1 : 0, &fetches[i].request);
                if (!one_byte)
                        fetches[i].request.method = "HEAD";
                fetches[i].to = &bytes[i];
                fetches[i].max_body = 1;
        }
        if (r == 0)
                r = http_fetch(remote_http(objects[0]), fetches, n, error);
        for (size_t i = 0; fetches != NULL && i < n; i++) {
                if (r == 0)
                        r = remote_check_answer(objects[i], &fetches[i].answer, error);
                http_fetch_deinit(&fetches[i]);
        }
        free(fetches);
        free(bytes);
        return r;
}

static void http_identify(const struct object *object, struct hash *hash)
{
        const struct remote *remote = remote_of(object);
        const uint64_t size = htole64(object->version.size);
        const char *texts[] = {remote->url, remote->etag ?: "", remote->modified ?: ""};
        hash_update(hash, &size, sizeof(size));
        for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
                hash_update(hash, texts[i], strlen(texts[i]) + 1);
}

/* ---- reading ---- */

/* From the bytes that came when it was opened. */
static bool read_first(const struct object_range *range)
{
        const struct remote *remote = remote_of(range->object);
        if (range->offset + range->len > remote->n_first)
                return false;
        memcpy(range->to, remote->first + range->offset, range->len);
        return true;
}

static int check_range_fetch(const struct http_fetch *f, const struct object *object, struct error *error)
{
        int r = remote_check_answer(object, &f->answer, error);
        if (r == 0 && f->got != f->request.len)
                r = error_set(error, STREAMER_EFAILED, "short body: %" PRIu64 " of %" PRIu64 " bytes (%s)", f->got,
                              f->request.len, object->path);
        return r;
}

static int http_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        const struct object **fetched = calloc(n, sizeof(*fetched));
        size_t n_fetches = 0;
        if (fetches == NULL || fetched == NULL) {
                free(fetches);
                free(fetched);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        for (size_t i = 0; i < n; i++) {
                const struct object_range *range = &ranges[i];
                if (range->len == 0 || read_first(range))
                        continue;
                fetched[n_fetches] = range->object;
                struct http_fetch *f = &fetches[n_fetches++];
                remote_request(range->object, range->offset, range->len, &f->request);
                f->to = range->to;
                f->max_body = range->len;
        }
        int r = n_fetches > 0 ? http_fetch(remote_http(ranges[0].object), fetches, n_fetches, error) : 0;
        for (size_t i = 0; i < n_fetches; i++) {
                if (r == 0)
                        r = check_range_fetch(&fetches[i], fetched[i], error);
                http_fetch_deinit(&fetches[i]);
        }
        free(fetched);
        free(fetches);
        return r;
}

static uint64_t http_first_read(const struct object *object)
{
        return remote_of(object)->n_first;
}

static bool http_streamed(const struct object *object)
{
        return !remote_of(object)->ranges && object->version.size > 0;
}

static void http_deinit(struct object *object)
{
        struct remote *remote = object->remote;
        if (remote == NULL)
                return;
        http_access_unref(remote->access);
        pthread_mutex_destroy(&remote->mutex);
        free(remote->url);
        free(remote->etag);
        free(remote->modified);
        free(remote->first);
        free(remote->led);
        free(remote);
        object->remote = NULL;
}

const struct object_ops object_http_ops = {
        .kind = "http",
        .engine = READ_HTTP,
        .first_read = http_first_read,
        .read_ranges = http_read_ranges,
        .check_versions = http_check_versions,
        .identify = http_identify,
        .streamed = http_streamed,
        .deinit = http_deinit,
};

int object_http_text(const struct object *object, uint64_t max, struct text *text, struct error *error)
{
        uint64_t size = object->version.size;
        if (size > max)
                return error_set(error, STREAMER_EFAILED, "%" PRIu64 " bytes, more than the %" PRIu64 " allowed (%s)",
                                 size, max, object->path);
        int r = text_new(text, size, error);
        return r < 0 ? r : object_read_range(object, 0, size, (unsigned char *)text->data, error);
}

/* ---- opening ---- */

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
        }
        if (object->path != NULL && remote != NULL && remote->url != NULL &&
            (url->etag == NULL || remote->etag != NULL))
                return 0;
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

static char *copy_header(const struct http_answer *answer, const char *name)
{
        const char *value = http_headers_find(&answer->headers, name);
        return value != NULL ? strdup(value) : NULL;
}

/* What came of the first bytes is kept: the header, or all where the object is something else. */
static void keep_first(struct remote *remote, const struct object_url *url, unsigned char *bytes, uint64_t n)
{
        uint64_t header = 0, keep = n;
        if (!url->whole_first && n >= LENGTH_BYTES) {
                memcpy(&header, bytes, sizeof(header));
                header = le64toh(header);
                keep = header < n - LENGTH_BYTES ? header + LENGTH_BYTES : n;
        }
        unsigned char *kept = realloc(bytes, keep > 0 ? keep : 1);
        remote->first = kept != NULL ? kept : bytes;
        remote->n_first = keep;
}

/* Takes over f->to. */
static int learn(struct object *object, const struct object_url *url, struct http_fetch *f, struct error *error)
{
        struct remote *remote = object->remote;
        const struct http_answer *answer = &f->answer;
        const char *range = http_headers_find(&answer->headers, "Content-Range");
        uint64_t total = answer->total;
        keep_first(remote, url, f->to, f->got);
        f->to = NULL;
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
        if (http_streamed(object))
                log_warn("the server knows no ranges: read in one stream (%s)", object->path);
        if (remote->etag == NULL)
                log_info("the server sends no ETag: a version is %s (%s)",
                         remote->modified != NULL ? "the size and Last-Modified" : "the size alone", object->path);
}

static int open_some(struct http *http, const struct object_url *urls, size_t n, struct object *objects,
                     struct error *error)
{
        struct http_fetch fetches[OPEN_AT_ONCE] = {{.to = NULL}};
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++) {
                r = object_new(&objects[i], http, &urls[i], error);
                if (r < 0)
                        break;
                remote_request(&objects[i], 0, FIRST_BYTES, &fetches[i].request);
                fetches[i].to = malloc(FIRST_BYTES);
                fetches[i].max_body = FIRST_BYTES;
                fetches[i].empty_ok = true;
                if (fetches[i].to == NULL)
                        r = error_set(error, STREAMER_ENOMEM, "no memory");
        }
        if (r == 0)
                r = http_fetch(http, fetches, n, error);
        for (size_t i = 0; i < n; i++) {
                if (r == 0)
                        r = learn(&objects[i], &urls[i], &fetches[i], error);
                free(fetches[i].to);
                http_fetch_deinit(&fetches[i]);
        }
        return r;
}

int object_http_open(struct http *http, const struct object_url *urls, size_t n, struct object *objects,
                     struct error *error)
{
        int r = 0;
        memset(objects, 0, n * sizeof(*objects));
        for (size_t i = 0; r == 0 && i < n; i += OPEN_AT_ONCE)
                r = open_some(http, urls + i, n - i < OPEN_AT_ONCE ? n - i : OPEN_AT_ONCE, objects + i, error);
        for (size_t i = 0; i < n; i++) {
                if (r < 0)
                        object_deinit(&objects[i]);
                else if (i == 0)
                        log_kind(&objects[i]);
        }
        return r;
}
