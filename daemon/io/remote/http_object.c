/* SPDX-License-Identifier: Apache-2.0
 *
 * Remote objects are opened without a HEAD request. The first answer gives the size, the version and whether the server
 * supports ranges, and contains the object's beginning, which of a safetensors file is its header. Of these bytes only
 * the header is stored, so that 4,096 shards do not cost their speculative bytes in memory.
 *
 * At the end of a load most objects need no check: each range was requested by its ETag, and in a store that replaces
 * objects atomically this proves that the bytes are of the version that was opened. A web server may serve a file that
 * is being written, and sends the headers of a range before its body: one more request checks the last bodies.
 */
#include "daemon/io/remote/http_object.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"
#include "daemon/io/remote/remote.h"

#include <endian.h>
#include <inttypes.h>

#define LENGTH_BYTES 8u /* of a header's length, before the header */
/* The first request, if the length of the header is unknown. Headers of common models have 3 to 300 KiB, most of them
 * less than 128. A longer header costs a second request, which takes the store's time to the first byte; a longer first
 * request costs a link of 200 ms up to 0.2 s for each doubling, since TCP's window is still growing. */
#define FIRST_BYTES (128 * KiB)
/* The first request for an index or a list, which is read whole. */
#define TEXT_BYTES (16 * MiB)
#define HEADER_BYTES_MAX (16 * MiB) /* of what an index says about a header */

struct remote *remote_of(const struct object *object)
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

char *remote_redirect_url(const struct object *object)
{
        struct remote *remote = remote_of(object);
        lock_scope(&remote->mutex);
        return remote->redirect_url != NULL ? strdup(remote->redirect_url) : NULL;
}

void remote_set_redirect_url(const struct object *object, const char *url)
{
        struct remote *remote = remote_of(object);
        lock_scope(&remote->mutex);
        free(remote->redirect_url);
        remote->redirect_url = url != NULL ? strdup(url) : NULL;
}

/* ---- versions ---- */

/* Without its quotes, which a store may send in one place and not in another. */
static const char *unquoted(const char *etag, size_t *len)
{
        *len = strlen(etag);
        bool quoted = *len >= 2 && etag[0] == '"' && etag[*len - 1] == '"';
        *len -= quoted ? 2 : 0;
        return quoted ? etag + 1 : etag;
}

static bool differs(const char *was, const char *is)
{
        size_t was_len, is_len;
        if (was == NULL || is == NULL)
                return false;
        was = unquoted(was, &was_len);
        is = unquoted(is, &is_len);
        return was_len != is_len || memcmp(was, is, was_len) != 0;
}

bool object_http_has_etag(const struct object *object, const char *etag)
{
        const struct remote *remote = remote_of(object);
        return remote->etag != NULL && !differs(remote->etag, etag);
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
        if (what != NULL)
                return error_set(error, STREAMER_EFAILED, "the object was replaced while it was read: another %s (%s)",
                                 what, object->path);
        const char *encoding = http_headers_find(&answer->headers, "Content-Encoding");
        if (encoding != NULL && strcmp(encoding, "identity") != 0)
                return error_set(error, STREAMER_EFAILED, "the server sends it encoded: %s (%s)", encoding,
                                 object->path);
        return 0;
}

/* ---- reading ---- */

static void prepare_fetch(struct http_fetch *fetch, const struct object *object, uint64_t offset, uint64_t len,
                          unsigned char *to)
{
        remote_request(object, offset, len, &fetch->request);
        fetch->to = to;
        fetch->max_body = len;
        fetch->context = (void *)(uintptr_t)object;
}

/* Of prepared fetches: each answer must be complete, and of the version that was opened. */
static int fetch_and_check(struct http_fetch *fetches, size_t n, struct error *error)
{
        int r = n > 0 ? http_fetch(remote_of(fetches[0].context)->http, fetches, n, error) : 0;
        for (size_t i = 0; i < n; i++) {
                struct http_fetch *f = &fetches[i];
                const struct object *object = f->context;
                r = r ?: remote_check_answer(object, &f->answer, error);
                if (r == 0 && f->got != f->request.len)
                        r = error_set(error, STREAMER_EFAILED, "short body: %" PRIu64 " of %" PRIu64 " bytes (%s)",
                                      f->got, f->request.len, object->path);
                http_fetch_deinit(f);
        }
        return r;
}

static int http_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        cleanup_free struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        cleanup_free unsigned char *bytes = calloc(n, 1);
        size_t n_fetches = 0;
        if (fetches == NULL || bytes == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n; i++) {
                const struct remote *remote = remote_of(objects[i]);
                /* The answers to its ranges were checked already. */
                if (remote->atomic && remote->etag != NULL && http_etag_strong(remote->etag))
                        continue;
                /* One byte, or of an empty object the headers: links that are signed for GET do not serve HEAD. */
                bool empty = objects[i]->version.size == 0;
                struct http_fetch *f = &fetches[n_fetches];
                prepare_fetch(f, objects[i], 0, empty ? 0 : 1, &bytes[n_fetches++]);
                if (empty)
                        f->request.method = "HEAD";
        }
        return fetch_and_check(fetches, n_fetches, error);
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

static int http_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        cleanup_free struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        size_t n_fetches = 0;
        if (fetches == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n; i++) {
                const struct object_range *range = &ranges[i];
                const struct remote *remote = remote_of(range->object);
                if (range->len == 0)
                        continue;
                if (range->offset + range->len <= range->object->first_read) /* received when it was opened */
                        memcpy(range->to, remote->first + range->offset, range->len);
                else
                        prepare_fetch(&fetches[n_fetches++], range->object, range->offset, range->len, range->to);
        }
        return fetch_and_check(fetches, n_fetches, error);
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
        free(remote->redirect_url);
        free(remote);
}

const struct object_ops object_http_ops = {
        .engine = READ_HTTP,
        .read_ranges = http_read_ranges,
        .check_versions = http_check_versions,
        .identify = http_identify,
        .deinit = http_deinit,
};

int object_http_text(struct object *object, uint64_t max, struct text *text, struct error *error)
{
        struct remote *remote = remote_of(object);
        uint64_t size = object->version.size, have = object->first_read;
        if (size > max)
                return error_set(error, STREAMER_EFAILED, "%" PRIu64 " bytes, more than the %" PRIu64 " allowed (%s)",
                                 size, max, object->path);
        int r = text_new(text, size, object->path, error);
        if (r < 0)
                return r;
        if (have > 0)
                memcpy(text->data, remote->first, have);
        free(remote->first);
        remote->first = NULL;
        object->first_read = 0;
        return object_read_range(object, have, size - have, (unsigned char *)text->data + have, error);
}

/* ---- opening ---- */

/* Stores the header of a safetensors file, or all of a text, and frees the other bytes while other answers are still
 * received. */
static void store_first(struct http_fetch *fetch)
{
        struct object *object = fetch->context;
        struct remote *remote = remote_of(object);
        char *bytes = fetch->answer.body;
        uint64_t header, n = fetch->got;
        if (n == 0)
                return;
        if (!remote->text && n > LENGTH_BYTES) {
                memcpy(&header, bytes, LENGTH_BYTES);
                header = le64toh(header);
                n = header < n - LENGTH_BYTES ? header + LENGTH_BYTES : n;
        }
        object->first_read = n;
        remote->first = (unsigned char *)(realloc(bytes, n) ?: bytes);
        fetch->answer.body = NULL;
        fetch->answer.body_len = 0;
}

int object_http_prepare(struct http *http, const struct object_url *url, struct object *object,
                        struct http_fetch *fetch, struct error *error)
{
        static const int absent[] = {404, 410, 0};
        struct remote *remote = calloc(1, sizeof(*remote));
        *object = (struct object){.ops = &object_http_ops, .path = strdup(url->shown), .remote = remote};
        if (remote == NULL)
                return error_no_memory(error);
        pthread_mutex_init(&remote->mutex, NULL);
        remote->http = http;
        remote->access = http_access_ref(url->access);
        remote->url = strdup(url->url);
        remote->etag = url->etag != NULL ? strdup(url->etag) : NULL;
        remote->atomic = url->atomic;
        remote->text = url->text;
        if (object->path == NULL || remote->url == NULL || (url->etag != NULL && remote->etag == NULL))
                return error_no_memory(error);
        uint64_t first = url->header > 0 && url->header < HEADER_BYTES_MAX ? url->header : FIRST_BYTES;
        *fetch = (struct http_fetch){.max_body = url->text ? TEXT_BYTES : first,
                                     .empty_ok = true,
                                     .fine = url->optional ? absent : NULL,
                                     .done = store_first,
                                     .context = object};
        remote_request(object, 0, fetch->max_body, &fetch->request);
        return 0;
}

static char *copy_header(const struct http_answer *answer, const char *name)
{
        const char *value = http_headers_find(&answer->headers, name);
        return value != NULL ? strdup(value) : NULL;
}

int object_http_finish(struct object *object, const struct http_fetch *fetch, struct error *error)
{
        struct remote *remote = remote_of(object);
        const struct http_answer *answer = &fetch->answer;
        uint64_t total = answer->status == 416 ? 0 : answer->total; /* an empty object has no range */
        if (answer->status >= 400 && answer->status != 416) {
                object_deinit(object);
                return 0;
        }
        if (total == UINT64_MAX)
                return error_set(error, STREAMER_EFAILED, "the server does not tell its size (%s)", object->path);
        object->version.size = total;
        if (answer->status != 206 && total > 0 && !remote->text)
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "the server does not support range requests: it answers %d to a Range header (%s)",
                                 answer->status, object->path);
        if (remote->etag == NULL)
                remote->etag = copy_header(answer, "ETag");
        remote->modified = copy_header(answer, "Last-Modified");
        remote->redirect_url = answer->redirect_url != NULL ? strdup(answer->redirect_url) : NULL;
        return remote_check_answer(object, answer, error);
}

int object_http_open(struct http *http, const struct object_url *urls, size_t n, struct object *objects,
                     struct error *error)
{
        cleanup_free struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        int r = 0;
        memset(objects, 0, n * sizeof(*objects));
        if (fetches == NULL)
                return error_no_memory(error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = object_http_prepare(http, &urls[i], &objects[i], &fetches[i], error);
        r = r ?: http_fetch(http, fetches, n, error);
        for (size_t i = 0; i < n; i++) {
                r = r ?: object_http_finish(&objects[i], &fetches[i], error);
                http_fetch_deinit(&fetches[i]);
        }
        for (size_t i = 0; r < 0 && i < n; i++)
                object_deinit(&objects[i]);
        const struct remote *first = r == 0 && n > 0 && objects[0].ops != NULL ? objects[0].remote : NULL;
        if (first != NULL && first->etag == NULL)
                log_info("the server sends no ETag: a version is %s (%s)",
                         first->modified != NULL ? "the size and Last-Modified" : "the size alone", objects[0].path);
        return r;
}
