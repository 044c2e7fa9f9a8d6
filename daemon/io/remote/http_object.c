/* SPDX-License-Identifier: Apache-2.0
 *
 * Remote objects once they are open (open.c): their requests, whether an answer is of the version that was opened,
 * their bytes.
 *
 * At the end of a load most objects need no check: each range was requested by its ETag, and in a store that replaces
 * objects atomically the bytes are then those of the version that was opened. A web server may serve a file that is
 * being written, and sends the headers of a range before its body: one more request checks the last bodies.
 */
#include "daemon/io/remote/http_object.h"

#include "daemon/base/text/text.h"
#include "daemon/base/util.h"
#include "daemon/io/http/policy.h"
#include "daemon/io/remote/remote.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

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
        pthread_mutex_lock(&remote->mutex);
        char *url = remote->redirect_url != NULL ? strdup(remote->redirect_url) : NULL;
        pthread_mutex_unlock(&remote->mutex);
        return url;
}

void remote_set_redirect_url(const struct object *object, const char *url)
{
        struct remote *remote = remote_of(object);
        pthread_mutex_lock(&remote->mutex);
        free(remote->redirect_url);
        remote->redirect_url = url != NULL ? strdup(url) : NULL;
        pthread_mutex_unlock(&remote->mutex);
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
                if (r == 0)
                        r = remote_check_answer(object, &f->answer, error);
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
                return error_set(error, STREAMER_ENOMEM, "no memory");
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
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < n; i++) {
                const struct object_range *range = &ranges[i];
                const struct remote *remote = remote_of(range->object);
                if (range->len == 0)
                        continue;
                if (range->offset + range->len <= remote->n_first) /* received when it was opened */
                        memcpy(range->to, remote->first + range->offset, range->len);
                else
                        prepare_fetch(&fetches[n_fetches++], range->object, range->offset, range->len, range->to);
        }
        return fetch_and_check(fetches, n_fetches, error);
}

static uint64_t http_first_read(const struct object *object)
{
        return remote_of(object)->n_first;
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
        object->remote = NULL;
}

const struct object_ops object_http_ops = {
        .engine = READ_HTTP,
        .first_read = http_first_read,
        .read_ranges = http_read_ranges,
        .check_versions = http_check_versions,
        .identify = http_identify,
        .deinit = http_deinit,
};

int object_http_text(struct object *object, uint64_t max, struct text *text, struct error *error)
{
        struct remote *remote = remote_of(object);
        uint64_t size = object->version.size, have = remote->n_first;
        if (size > max)
                return error_set(error, STREAMER_EFAILED, "%" PRIu64 " bytes, more than the %" PRIu64 " allowed (%s)",
                                 size, max, object->path);
        int r = text_new(text, size, object->path, error);
        if (r < 0)
                return r;
        if (have > size)
                have = size;
        if (have > 0)
                memcpy(text->data, remote->first, have);
        free(remote->first);
        remote->first = NULL;
        remote->n_first = 0;
        return object_read_range(object, have, size - have, (unsigned char *)text->data + have, error);
}
