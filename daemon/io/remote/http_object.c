/* SPDX-License-Identifier: Apache-2.0
 *
 * Remote objects are opened without a HEAD request. The first answer gives the size, the version and whether the server
 * supports ranges, and contains the object's beginning, which of a safetensors file is its header. Of these bytes only
 * the header is stored, so that 4,096 shards do not cost their speculative bytes in memory.
 *
 * Of an object that the disk cache probably has, only what tells the present version is requested, whatever a list has
 * said: the answer also shows that the object may be read. A copy of that version is read instead (object->copy).
 *
 * At the end of a load most objects need no check: each range was requested by its ETag, and in a store that replaces
 * objects atomically this proves that the bytes are of the version that was opened. A web server may serve a file that
 * is being written, and sends the headers of a range before its body: one more request checks the last bodies.
 */
#include "daemon/io/remote/http_object.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"
#include "daemon/io/disk/disk_cache.h"
#include "daemon/io/http/http.h"
#include "daemon/io/remote/remote.h"

#include <endian.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <strings.h>

#define LENGTH_BYTES 8u /* of a header's length, before the header */
/* The first request, if the length of the header is unknown. Headers of common models have 3 to 300 KiB, most of them
 * less than 128. A longer header costs a second request, which takes the store's time to the first byte; a longer first
 * request costs a link of 200 ms up to 0.2 s for each doubling, since TCP's window is still growing. */
#define FIRST_BYTES (128 * KiB)
/* The first request for an index or a list, which is read whole. */
#define TEXT_BYTES (16 * MiB)
#define HEADER_BYTES_MAX (16 * MiB) /* of what an index says about a header */
#define STORED_MAX (8 * MiB) /* of a header or a text that is kept for the disk cache; a longer one is read again */

static const struct http_dialect etags = {.version = "ETag", .word = "ETag"};

struct remote *remote_of(const struct object *object)
{
        require(object->ops == &object_http_ops);
        return object->remote;
}

/* ---- requests ---- */

/* A version of another kind than an ETag denotes all bytes. */
static bool is_strong(const struct remote *remote, const char *version)
{
        return remote->dialect != &etags || http_etag_strong(version);
}

/* What the first answer or, before it, the list gives. */
static const char *condition(const struct remote *remote)
{
        const char *etag = remote->etag ?: remote->listed_etag;
        return etag != NULL && is_strong(remote, etag) && !load_relaxed(&remote->unconditional) ? etag : NULL;
}

void remote_request(const struct object *object, uint64_t offset, uint64_t len, struct http_request *request)
{
        const struct remote *remote = remote_of(object);
        *request = (struct http_request){.url = remote->url,
                                         .shown = object->path,
                                         .offset = offset,
                                         .len = len,
                                         .size = object->version.size,
                                         .if_match = condition(remote),
                                         .match_parameter = remote->dialect->parameter,
                                         .access = remote->access,
                                         .has_private_query = true};
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

static bool same_header(const struct http_answer *answer, const char *name, const char *was)
{
        const char *is = http_headers_find(&answer->headers, name);
        return is != NULL ? was != NULL && strcmp(is, was) == 0 : was == NULL;
}

/* NULL: none, or one that says nothing. */
static const char *etag_of(const struct remote *remote, const struct http_answer *answer)
{
        const char *etag = http_headers_find(&answer->headers, remote->dialect->version);
        return etag != NULL && http_etag_valid(etag) ? etag : NULL;
}

static const char *another_value(const struct http_answer *answer, const char *name,
                                 bool (*equal)(const char *a, const char *b))
{
        const char *first = http_headers_find(&answer->headers, name), *more;
        for (size_t i = 1; (more = http_headers_find_nth(&answer->headers, name, i)) != NULL; i++)
                if (!equal(first, more))
                        return more;
        return NULL;
}

static bool equal_text(const char *a, const char *b)
{
        return strcmp(a, b) == 0;
}

/* The name of a validator that the answer has twice, with other values: which of them is that of its bytes is not
 * known. NULL: none. */
static const char *contradiction(const struct remote *remote, const struct http_answer *answer)
{
        if (another_value(answer, remote->dialect->version, http_etag_equal) != NULL)
                return remote->dialect->word;
        return another_value(answer, "Last-Modified", equal_text) != NULL ? "Last-Modified" : NULL;
}

/* A time that both have. In a store, whose copies may have been written at other times, an ETag denotes all bytes. */
static bool has_another_time(const struct remote *remote, const struct http_answer *answer)
{
        const char *modified = http_headers_find(&answer->headers, "Last-Modified");
        bool decided = remote->atomic && remote->etag != NULL && is_strong(remote, remote->etag);
        return !decided && modified != NULL && remote->modified != NULL && strcmp(modified, remote->modified) != 0;
}

/* What a server that was asked for no encoding has encoded cannot be read. aws-chunked is of an upload, and some stores
 * return it with the decoded bytes. */
static bool is_encoded(const char *encoding)
{
        for (size_t len; *encoding != '\0'; encoding += len) {
                encoding += strspn(encoding, ", \t");
                len = strcspn(encoding, ", \t");
                if (len > 0 && !(len == 8 && strncasecmp(encoding, "identity", len) == 0) &&
                    !(len == 11 && strncasecmp(encoding, "aws-chunked", len) == 0))
                        return true;
        }
        return false;
}

/* NULL: the bytes are the object's. */
static const char *encoding_of(const struct remote *remote, const struct http_answer *answer)
{
        const char *encoding = http_headers_find(&answer->headers, "Content-Encoding");
        if (remote->dialect->encoding != NULL)
                encoding = http_headers_find(&answer->headers, remote->dialect->encoding) ?: encoding;
        return encoding != NULL && is_encoded(encoding) ? encoding : NULL;
}

bool object_http_has_etag(const struct object *object, const char *etag)
{
        const struct remote *remote = remote_of(object);
        return remote->etag != NULL && http_etag_same(remote->etag, etag);
}

bool object_http_listed_another(const struct object *object)
{
        return remote_of(object)->listed_another;
}

/* The server compares wrongly: its answer to the same request without If-Match is of the right version. */
static void stop_conditions(const struct object *object, const char *said)
{
        struct remote *remote = remote_of(object);
        if (!__atomic_exchange_n(&remote->unconditional, true, __ATOMIC_RELAXED))
                log_warn("%s is refused with the %s that the object has, and is not sent any more: %s",
                         remote->dialect->parameter ?: "If-Match", remote->dialect->word, said);
}

enum remote_difference remote_compare_answer(const struct object *object, const struct http_answer *answer,
                                             struct error *error)
{
        const struct remote *remote = remote_of(object);
        const char *etag = etag_of(remote, answer), *word = remote->dialect->word, *what = NULL;
        const char *twice = contradiction(remote, answer);
        char text[80];
        enum remote_difference difference = REMOTE_OTHER;
        if (answer->total != UINT64_MAX && answer->total != object->version.size) {
                what = "another size";
        } else if (object->version.size == 0) {
                return REMOTE_SAME; /* there are no bytes of versions that could be mixed */
        } else if (twice != NULL) {
                what = text;
                snprintf(text, sizeof(text), "two values of %s in one answer", twice);
        } else if (remote->etag != NULL && etag == NULL) {
                what = text;
                snprintf(text, sizeof(text), "no %s", word);
        } else if (remote->etag == NULL && etag != NULL) {
                what = text;
                snprintf(text, sizeof(text), "%s %s, which it had not", remote->dialect == &etags ? "an" : "a", word);
        } else if (etag != NULL && !http_etag_equal(remote->etag, etag)) {
                what = text;
                snprintf(text, sizeof(text), "another %s", word);
                difference = REMOTE_OTHER_ETAG;
        } else if (has_another_time(remote, answer) ||
                   (etag == NULL && !same_header(answer, "Last-Modified", remote->modified))) {
                what = "another Last-Modified";
        }
        if (what != NULL) {
                error_set(error, STREAMER_EFAILED, "the object was replaced while it was read: %s%s%s (%s)", what,
                          answer->condition != NULL ? "; before, " : "", answer->condition ?: "", object->path);
                return difference;
        }
        const char *encoding = encoding_of(remote, answer);
        if (!same_text(encoding, remote->encoding)) {
                error_set(error, STREAMER_EFAILED, "the server sends it encoded: %s (%s)", encoding ?: "not any more",
                          object->path);
                return REMOTE_OTHER;
        }
        if (answer->condition != NULL)
                stop_conditions(object, answer->condition);
        return REMOTE_SAME;
}

int remote_two_etags(const struct object *object, struct error *error)
{
        return error_set(error, STREAMER_EFAILED,
                         "the server gives the object two ETags in turn, as several servers of one name do that do not "
                         "agree (%s)",
                         object->path);
}

/* ---- the version of the first answer ---- */

/* In a store the header is a note about the object, and a range is of the bytes that are stored. */
static int check_encoding(const struct object *object, const struct http_answer *answer, struct error *error)
{
        const struct remote *remote = remote_of(object);
        const char *encoding = encoding_of(remote, answer);
        if (encoding == NULL || (remote->atomic && remote->dialect->encoding == NULL && answer->status == 206))
                return 0;
        if (remote->dialect->encoding != NULL)
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "the object is stored with Content-Encoding %s, of which no range can be read: store "
                                 "it without (%s)",
                                 encoding, object->path);
        return error_set(error, STREAMER_EFAILED, "the server sends it encoded: %s (%s)", encoding, object->path);
}

/* A time of 0 or 1 is that of a system which sets all times so. */
static bool has_trusted_time(const struct remote *remote, const struct http_answer *answer)
{
        const char *text = remote->listed_time ?: remote->modified, *date = http_headers_find(&answer->headers, "Date");
        time_t changed = text != NULL ? http_date(text) : -1, now = date != NULL ? http_date(date) : -1;
        return changed > 1 && now > changed + 1;
}

/* The kind of version; NULL: it is not to be trusted. */
static const char *version_kind(const struct remote *remote, const struct http_answer *answer)
{
        const char *etag = remote->etag ?: remote->listed_etag;
        bool time_known = remote->modified != NULL || remote->listed_time != NULL;
        bool trusted_time = has_trusted_time(remote, answer);
        if (etag != NULL && (is_strong(remote, etag) || !time_known || trusted_time))
                return "ETag";
        return trusted_time ? "time" : NULL;
}

static char *copy_header(const struct http_answer *answer, const char *name)
{
        const char *value = http_headers_find(&answer->headers, name);
        return value != NULL ? strdup(value) : NULL;
}

static void make_unique(struct remote *remote)
{
        static uint64_t opened;
        remote->unique[0] = read_clock_ns(CLOCK_REALTIME);
        remote->unique[1] = add_relaxed(&opened, 1);
}

static int take_version(struct object *object, const struct http_answer *answer, struct error *error)
{
        struct remote *remote = remote_of(object);
        const char *etag = etag_of(remote, answer), *twice = contradiction(remote, answer);
        if (twice != NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "the server gives the object two values of %s in one answer (%s)", twice,
                                 object->path);
        remote->etag = etag != NULL ? strdup(etag) : NULL;
        remote->modified = copy_header(answer, "Last-Modified");
        const char *encoding = encoding_of(remote, answer);
        remote->encoding = encoding != NULL ? strdup(encoding) : NULL;
        if ((etag != NULL && remote->etag == NULL) || !same_header(answer, "Last-Modified", remote->modified) ||
            !same_text(encoding, remote->encoding))
                return error_no_memory(error);
        remote->listed_another =
                etag != NULL && remote->listed_etag != NULL && !http_etag_same(etag, remote->listed_etag);
        if (answer->condition != NULL && !remote->listed_another)
                stop_conditions(object, answer->condition);
        const char *kind = version_kind(remote, answer);
        remote->is_unique = kind == NULL;
        if (remote->is_unique)
                make_unique(remote);
        if (kind == NULL && !remote->text)
                log_warn("the server sends no %s: a later load reads all again (%s)",
                         remote->modified == NULL && remote->listed_time == NULL
                                 ? "ETag and no Last-Modified"
                                 : "strong ETag, and the object changed a moment ago",
                         object->path);
        else if (kind != NULL && kind[0] == 't')
                log_info("the server sends no ETag: a version is the size and Last-Modified (%s)", object->path);
        return 0;
}

/* ---- the disk cache ---- */

static bool sha256_of(unsigned char out[32], const char *text)
{
        return EVP_Digest(text, strlen(text), out, NULL, EVP_sha256(), NULL) == 1;
}

/* Without the mark of weakness and the quotes. */
static char *bare_etag(const char *etag)
{
        const char *from = strncmp(etag, "W/", 2) == 0 ? etag + 2 : etag;
        size_t len = strlen(from);
        if (len >= 2 && from[0] == '"' && from[len - 1] == '"')
                return strndup(from + 1, len - 2);
        return strdup(from);
}

/* What identifies the object in any version: without what differs from link to link. malloc'd; NULL: no memory. */
static char *place_of(const struct remote *remote)
{
        return remote->content != NULL ? strdup(remote->content) : http_url_without_signature(remote->url);
}

/* By its version, or (not yet opened) the one in the list. False: it has none that identifies its bytes. */
static bool identify_version(const struct remote *remote, struct object_label *label)
{
        const char *etag = remote->etag ?: remote->listed_etag;
        bool strong = etag != NULL && is_strong(remote, etag);
        cleanup_free char *place = place_of(remote);
        cleanup_free char *bare = bare_etag(etag ?: "");
        bool by_content = remote->content != NULL;
        if (place == NULL || bare == NULL || (!by_content && (remote->is_unique || (!strong && !remote->modified))))
                return false;
        cleanup_free char *version =
                by_content ? strdup(place) : format_new("%s\n%s\n%s", place, bare, strong ? "" : remote->modified);
        label->etag = etag;
        label->modified = remote->modified;
        label->settled = remote->atomic && strong;
        return version != NULL && sha256_of(label->place, place) && sha256_of(label->id, version);
}

static bool http_label(const struct object *object, struct object_label *label)
{
        const struct remote *remote = remote_of(object);
        *label = (struct object_label){.url = remote->url,
                                       .first = remote->stored ?: remote->first,
                                       .n_first = remote->stored != NULL ? remote->n_stored : object->first_read};
        return remote->disk != NULL && object->version.size > 0 && remote->encoding == NULL &&
               identify_version(remote, label);
}

/* It is read from its copy from now on. */
static void use_copy(struct object *object)
{
        struct remote *remote = remote_of(object);
        object->version.size = object->copy->file->version.size;
        object->first_read = object->copy->header;
        free(remote->first);
        remote->first = NULL;
}

/* The same, and the version is that of the copy. */
static int take_copy(struct object *object, struct error *error)
{
        struct remote *remote = remote_of(object);
        const struct object_copy *copy = object->copy;
        use_copy(object);
        remote->etag = filled(copy->etag) != NULL ? strdup(copy->etag) : NULL;
        remote->modified = filled(copy->modified) != NULL ? strdup(copy->modified) : NULL;
        bool ok = !filled(copy->etag) == !remote->etag && !filled(copy->modified) == !remote->modified;
        return ok ? 0 : error_no_memory(error);
}

/* Its version is known. */
static void find_copy(struct object *object, uint64_t size)
{
        struct remote *remote = remote_of(object);
        struct object_label label;
        require(object->copy == NULL);
        if (identify_version(remote, &label) && remote->encoding == NULL)
                object->copy = disk_cache_open(remote->disk, label.id, size, object->path);
}

/* The version in the list is there, or if the list has none some version: then the first answer need not bring its
 * beginning. */
static bool may_be_stored(const struct remote *remote)
{
        struct object_label label;
        unsigned char place[32];
        if (identify_version(remote, &label))
                return disk_cache_has_version(remote->disk, label.id);
        cleanup_free char *text = place_of(remote);
        return text != NULL && sha256_of(place, text) && disk_cache_has(remote->disk, place);
}

/* Keeps the header, whose rest was read to `rest`, as it is stored: it is parsed in place. */
static void keep_header(const struct object *object, const unsigned char *rest, uint64_t len)
{
        struct remote *remote = remote_of(object);
        uint64_t n = object->first_read + len;
        if (remote->disk == NULL || object->copy != NULL || remote->stored != NULL || remote->first == NULL ||
            n > STORED_MAX)
                return;
        remote->stored = malloc(n);
        if (remote->stored == NULL)
                return;
        memcpy(remote->stored, remote->first, object->first_read);
        memcpy(remote->stored + object->first_read, rest, len);
        remote->n_stored = n;
}

static void keep_text(const struct object *object, const struct text *text)
{
        struct remote *remote = remote_of(object);
        if (remote->disk == NULL || object->copy != NULL || remote->stored != NULL || text->size > STORED_MAX)
                return;
        remote->stored = malloc(text->size + 1);
        if (remote->stored == NULL)
                return;
        memcpy(remote->stored, text->data, text->size);
        remote->n_stored = text->size;
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

/* An ETag that differs is asked for once more, over another connection: the object's may come back. */
static int check_answer(const struct object *object, const struct http_answer *answer, struct error *error)
{
        struct error ignored;
        unsigned char byte;
        enum remote_difference difference = remote_compare_answer(object, answer, error);
        if (difference != REMOTE_OTHER_ETAG)
                return difference == REMOTE_SAME ? 0 : error->code;
        cleanup_with(http_fetch_deinit) struct http_fetch again = {.max_body = 0};
        prepare_fetch(&again, object, 0, 1, &byte);
        again.fresh = true;
        if (http_fetch(remote_of(object)->http, &again, 1, &ignored) == 0 &&
            remote_compare_answer(object, &again.answer, &ignored) == REMOTE_SAME)
                return remote_two_etags(object, error);
        return error->code;
}

/* Of prepared fetches: each answer must be complete, and of the version that was opened. */
static int fetch_and_check(struct http_fetch *fetches, size_t n, struct error *error)
{
        int r = n > 0 ? http_fetch(remote_of(fetches[0].context)->http, fetches, n, error) : 0;
        for (size_t i = 0; i < n; i++) {
                struct http_fetch *f = &fetches[i];
                const struct object *object = f->context;
                r = r ?: check_answer(object, &f->answer, error);
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
                /* All of it was read from its copy; or the answers to its ranges were checked already. */
                if (objects[i]->copy != NULL && !objects[i]->copy->damaged)
                        continue;
                if (remote->atomic && remote->etag != NULL && is_strong(remote, remote->etag))
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

/* `url`: NULL: without it. */
static void hash_version(const struct object *object, const char *url, struct hash *hash)
{
        const struct remote *remote = remote_of(object);
        const uint64_t size = htole64(object->version.size);
        const char *texts[] = {url, remote->etag ?: remote->listed_etag ?: "", remote->modified ?: "",
                               remote->etag == NULL ? remote->listed_time : NULL};
        hash_update(hash, &size, sizeof(size));
        for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
                if (texts[i] != NULL)
                        hash_update(hash, texts[i], strlen(texts[i]) + 1);
        if (remote->is_unique)
                hash_update(hash, remote->unique, sizeof(remote->unique));
}

static void http_identify(const struct object *object, struct hash *hash)
{
        const struct remote *remote = remote_of(object);
        cleanup_free char *url = http_url_without_signature(remote->url); /* no memory: it is another object */
        hash_version(object, url ?: remote->url, hash);
}

static void http_identify_answer(const struct object *object, struct hash *hash)
{
        hash_version(object, NULL, hash);
}

static int http_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        cleanup_free struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        size_t n_fetches = 0;
        if (fetches == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n; i++) {
                const struct object_range *range = &ranges[i];
                const struct object_copy *copy = range->object->copy;
                const unsigned char *first = copy != NULL ? copy->first : remote_of(range->object)->first;
                if (range->len == 0)
                        continue;
                if (range->offset + range->len <= range->object->first_read) /* received when it was opened */
                        memcpy(range->to, first + range->offset, range->len);
                else
                        prepare_fetch(&fetches[n_fetches++], range->object, range->offset, range->len, range->to);
        }
        int r = fetch_and_check(fetches, n_fetches, error);
        for (size_t i = 0; r == 0 && i < n; i++)
                if (ranges[i].len > 0 && ranges[i].offset == ranges[i].object->first_read)
                        keep_header(ranges[i].object, ranges[i].to, ranges[i].len);
        return r;
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
        free(remote->encoding);
        free(remote->listed_etag);
        free(remote->listed_time);
        free(remote->first);
        free(remote->stored);
        free(remote->content);
        free(remote->redirect_url);
        free(remote);
}

const struct object_ops object_http_ops = {
        .engine = READ_HTTP,
        .read_ranges = http_read_ranges,
        .check_versions = http_check_versions,
        .identify = http_identify,
        .identify_answer = http_identify_answer,
        .label = http_label,
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
                memcpy(text->data, object->copy != NULL ? object->copy->first : remote->first, have);
        free(remote->first);
        remote->first = NULL;
        object->first_read = 0;
        r = object_read_range(object, have, size - have, (unsigned char *)text->data + have, error);
        if (r == 0)
                keep_text(object, text);
        return r;
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
        struct remote *remote = calloc(1, sizeof(*remote));
        *object = (struct object){.ops = &object_http_ops, .path = strdup(url->shown), .remote = remote};
        if (remote == NULL)
                return error_no_memory(error);
        pthread_mutex_init(&remote->mutex, NULL);
        remote->http = http;
        remote->access = http_access_ref(url->access);
        remote->url = strdup(url->url);
        remote->dialect = url->dialect ?: &etags;
        const char *etag = url->etag != NULL && http_etag_valid(url->etag) ? url->etag : NULL;
        remote->listed_etag = etag != NULL ? strdup(etag) : NULL;
        remote->listed_time = url->modified != NULL ? strdup(url->modified) : NULL;
        remote->atomic = url->atomic;
        remote->text = url->text;
        remote->disk = url->disk;
        remote->content = url->content != NULL ? strdup(url->content) : NULL;
        if (object->path == NULL || !remote->content != !url->content || remote->url == NULL ||
            (etag != NULL && remote->listed_etag == NULL) || (url->modified != NULL && remote->listed_time == NULL))
                return error_no_memory(error);
        uint64_t first = url->header > 0 && url->header < HEADER_BYTES_MAX ? url->header : FIRST_BYTES;
        first = url->text ? TEXT_BYTES : first;
        if (remote->disk != NULL && may_be_stored(remote))
                first = LENGTH_BYTES;
        *fetch = (struct http_fetch){.max_body = first,
                                     .accepts = url->optional ? http_accepts_absent : http_accepts_empty,
                                     .done = store_first,
                                     .context = object};
        remote_request(object, 0, fetch->max_body, &fetch->request);
        return 0;
}

/* Such as the page of a proxy that asks for a password. */
static int refuse_whole(const struct object *object, const struct http_answer *answer, struct error *error)
{
        char to[REDACTED_SOURCE] = "";
        const char *type = http_headers_find(&answer->headers, "Content-Type");
        if (answer->redirect_url != NULL)
                redact_source(to, answer->redirect_url);
        return error_set(error, STREAMER_EUNSUPPORTED,
                         "the server does not support range requests: it answers %d to a Range header (%s%s%s%s%s)",
                         answer->status, object->path, type != NULL ? ", Content-Type " : "", type ?: "",
                         to[0] != '\0' ? ", redirected to " : "", to);
}

int object_http_open_stored(struct http *http, struct disk_cache *disk, const struct disk_member *member,
                            struct http_access *access, struct object *object, struct error *error)
{
        struct remote *remote = calloc(1, sizeof(*remote));
        *object = (struct object){.ops = &object_http_ops, .path = strdup(member->path), .remote = remote};
        if (remote == NULL)
                return error_no_memory(error);
        pthread_mutex_init(&remote->mutex, NULL);
        remote->http = http;
        remote->access = http_access_ref(access);
        remote->dialect = &etags;
        remote->url = strdup(member->url);
        remote->text = member->is_index;
        object->folder_len = member->folder_len;
        if (object->path == NULL || remote->url == NULL)
                return error_no_memory(error);
        object->copy = disk_cache_open(disk, member->id, UINT64_MAX, member->path);
        if (object->copy == NULL)
                return error_set(error, STREAMER_EFAILED, "it is not in the disk cache any more (%s)", member->path);
        return take_copy(object, error);
}

bool object_http_is_below(const struct object *object, const char *url)
{
        return strncmp(remote_of(object)->url, url, strlen(url)) == 0;
}

/* Of at most HTTP_PARALLEL objects; adds how many were answered. */
static int ask_some(const struct object *const *objects, size_t n, size_t *answered, struct error *error)
{
        cleanup_free struct http_fetch *fetches = calloc(n, sizeof(*fetches));
        if (fetches == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n; i++) {
                remote_request(objects[i], 0, 1, &fetches[i].request);
                fetches[i].request.if_match = NULL; /* in any version */
                fetches[i].max_body = 1;
                fetches[i].probes = true;
        }
        int r = http_fetch(remote_of(objects[0])->http, fetches, n, error);
        for (size_t i = 0; i < n; i++) {
                const struct http_fetch *f = &fetches[i];
                *answered += f->answer.status != 0;
                if (r == 0 && http_status_is_refusal(f->answer.status)) {
                        require(f->error.code != 0);
                        *error = f->error;
                        r = error->code;
                }
                http_fetch_deinit(&fetches[i]);
        }
        return r;
}

int object_http_ask(const struct object *const *objects, size_t n, struct error *error)
{
        int r = 0;
        for (size_t i = 0, answered = 0; r == 0 && i < n && (i == 0 || answered > 0); i += HTTP_PARALLEL) {
                size_t left = n - i;
                answered = 0; /* if none of these is answered, the others are not requested */
                r = ask_some(objects + i, left < HTTP_PARALLEL ? left : HTTP_PARALLEL, &answered, error);
        }
        return r;
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
        /* Where a store decodes what is encoded it sends the whole, of a size that it does not know. */
        int r = remote->dialect->encoding != NULL ? check_encoding(object, answer, error) : 0;
        if (r < 0)
                return r;
        if (total == UINT64_MAX)
                return error_set(error, STREAMER_EFAILED, "the server does not tell its size (%s)", object->path);
        object->version.size = total;
        if (remote->dialect->take_sum != NULL)
                remote->dialect->take_sum(object, &answer->headers);
        if (answer->status != 206 && total > 0 && !remote->text)
                return refuse_whole(object, answer, error);
        remote->redirect_url = answer->redirect_url != NULL ? strdup(answer->redirect_url) : NULL;
        r = take_version(object, answer, error) ?: check_encoding(object, answer, error);
        if (r == 0 && remote->disk != NULL && total > 0)
                find_copy(object, total);
        if (object->copy != NULL)
                use_copy(object);
        return r;
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
        return r;
}
