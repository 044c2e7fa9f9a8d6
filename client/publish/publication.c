/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling the memory that the daemon lends, and the commit: the mappings are replaced in place by private ones, of a
 * descriptor for reading alone, before the daemon is asked to seal. So no process can write when it does.
 */
#include "client/publish/publication.h"

#include "client/args.h"
#include "client/python.h"
#include "client/util.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* A segment is allocated as a whole, while the caller still has its own copy of what is to be copied there. */
#define SEGMENT_SHARE 20
#define SEGMENT_MIN (UINT64_C(64) << 20)
/* Reserved for the table: of each storage its tensors, and attributes. A larger one has a segment of its own. */
#define TABLE_BYTES (UINT64_C(512) << 10)
#define TABLE_PER_STORAGE UINT64_C(2048)
#define BYTES_MAX (UINT64_C(1) << 56)
#define TENSOR_FLAGS                                                                                                   \
        (STREAMER_PUBLISHED_PERSISTENT | STREAMER_PUBLISHED_CLONE | STREAMER_PUBLISHED_HOST | STREAMER_PUBLISHED_GRAD)

static int check(const streamer_publication *p, const char *call)
{
        return args_pointer(NULL, call, "publication", p) ?: channel_check(p->client);
}

static int check_begun(const streamer_publication *p, const char *call)
{
        int rc = check(p, call);
        if (rc == 0 && !p->lease)
                rc = fail(p->client, STREAMER_EINVAL, "%s: the publication has not begun", call);
        if (rc == 0 && p->is_private)
                rc = fail(p->client, STREAMER_EINVAL, "%s: the publication has been committed", call);
        return rc;
}

/* A claim is valid on its connection only: it ended with that. */
static int lost(const streamer_publication *p, int rc)
{
        return rc == STREAMER_ENOENT ? fail(p->client, STREAMER_ELOST,
                                            "the connection was lost, and the publication with it; the memory stays "
                                            "mapped until streamer_publish_abort()")
                                     : rc;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) / to * to;
}

/* As the daemon does it. */
static uint64_t segment_size(const streamer_publication *p, uint64_t bytes)
{
        return round_up(bytes, bytes <= p->small ? p->page : p->granularity);
}

/* ---- begin ---- */

/* Places the storages in their order; a segment ends where the next one does not fit. */
static int place(streamer_publication *p, const uint64_t *bytes, size_t n, uint64_t *total)
{
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++)
                if (bytes[i] > BYTES_MAX || (sum += round_up(bytes[i], PUBLISHED_ALIGN)) > BYTES_MAX)
                        return fail(p->client, STREAMER_EINVAL, "publish_begin: storage %zu: its size is out of range",
                                    i);
        uint64_t share = sum / SEGMENT_SHARE;
        uint64_t most = round_up(share > SEGMENT_MIN ? share : SEGMENT_MIN, p->granularity);
        p->n_segments = 1;
        for (size_t i = 0; i < n; i++) {
                struct lent_segment *s = &p->segments[p->n_segments - 1];
                uint64_t size = round_up(bytes[i], PUBLISHED_ALIGN);
                if (s->bytes > 0 && s->bytes + size > most)
                        s = &p->segments[p->n_segments++];
                p->storages[i] = (struct placed_storage){
                        .segment = (uint32_t)(s - p->segments), .offset = s->bytes, .bytes = bytes[i]};
                s->bytes += size;
        }
        struct lent_segment *last = &p->segments[p->n_segments - 1];
        p->table_offset = round_up(last->bytes, (uint64_t)sysconf(_SC_PAGESIZE));
        last->bytes = p->table_offset + round_up(TABLE_BYTES + n * TABLE_PER_STORAGE, PUBLISHED_ALIGN);
        *total = 0;
        for (size_t i = 0; i < p->n_segments; i++) {
                struct lent_segment *s = &p->segments[i];
                s->bytes = segment_size(p, s->bytes);
                s->reading = -1;
                *total += s->bytes;
        }
        return 0;
}

static int begin(streamer_publication *p, struct streamer_lease *lease, uint64_t bytes)
{
        struct call call = {.accept = lease_accept, .arg = lease};
        struct request request = {.verb = VERB_publish_begin,
                                  .u.publish_begin = {.claim = p->claim, .bytes = bytes, .tensors = p->as_tensors}};
        int rc = channel_call(p->client, &request, &call, channel_deadline(p->client));
        p->hopeless = call.hopeless;
        if (rc != 0)
                return lost(p, rc);
        const msgpack_object *reply = &call.reply.unpacked.data;
        lease->device_kind = object_str_eq(reply, "device_kind", "cuda") ? "cuda" : "host";
        if (!lease->accepted)
                rc = fail(p->client, STREAMER_EPROTO, "publish_begin: the daemon's reply has no valid lease");
        call_deinit(&call);
        return rc;
}

int streamer_publish_begin(streamer_publication *publication, const uint64_t *bytes, size_t n)
{
        uint64_t total = 0;
        int rc = check(publication, "publish_begin");
        if (rc == 0 && n > 0)
                rc = args_pointer(publication->client, "publish_begin", "bytes", bytes);
        if (rc == 0 && publication->lease)
                rc = fail(publication->client, STREAMER_EINVAL, "publish_begin: the publication has begun");
        if (rc == 0 && n > PUBLISHED_MAX_STORAGES)
                rc = fail(publication->client, STREAMER_EINVAL, "publish_begin: more than %u storages",
                          PUBLISHED_MAX_STORAGES);
        if (rc != 0)
                return rc;
        free(publication->storages);
        memset(publication->segments, 0, sizeof(publication->segments));
        publication->storages = calloc(n + 1, sizeof(*publication->storages));
        publication->n_storages = n;
        struct streamer_lease *lease = publication->storages ? lease_new(publication->client, 0) : NULL;
        if (!lease)
                return fail(publication->client, STREAMER_ENOMEM, "publish_begin: no memory");
        rc = place(publication, bytes, n, &total)
                     ?: lease_reserve(lease, MANIFEST_MAX_SEGMENTS)
                     ?: begin(publication, lease, total);
        if (rc != 0) {
                lease_unref(lease);
                return rc;
        }
        publication->lease = lease;
        return 0;
}

int streamer_python_begin(streamer_publication *publication, const uint64_t *bytes, size_t n, int *hopeless)
{
        int r = streamer_publish_begin(publication, bytes, n);
        *hopeless = r != 0 && publication && publication->hopeless;
        return r;
}

/* ---- memory ---- */

static int map_segment(streamer_publication *p, struct lent_segment *s, struct call *call)
{
        const msgpack_object *reply = &call->reply.unpacked.data;
        uint64_t number;
        int reading;
        if (!object_u64(reply, "number", &number) || number != p->lease->n_segments ||
            !call_fd(call, object_get(reply, "reading"), &reading))
                return fail(p->client, STREAMER_EPROTO, "publish_segment: the daemon's reply has no valid segment");
        int rc = lease_map_segment(p->lease, call, object_get(reply, "segment"), true, s->bytes);
        if (rc != 0)
                return rc;
        s->number = (uint32_t)number;
        s->mapped = true;
        s->reading = reading;
        for (size_t i = 0; i < call->n_fds; i++)
                if (call->fds[i] == reading)
                        call->fds[i] = -1;
        return 0;
}

static int request_segment(streamer_publication *p, struct lent_segment *s)
{
        struct call call = {.slow = "publish_segment"};
        struct request request = {.verb = VERB_publish_segment,
                                  .u.publish_segment = {.claim = p->claim, .bytes = s->bytes}};
        if (s->mapped)
                return 0;
        int rc = channel_call(p->client, &request, &call,
                              p->client->timeout_given ? channel_deadline(p->client) : NEVER);
        if (rc != 0)
                return lost(p, rc);
        rc = map_segment(p, s, &call);
        call_deinit(&call);
        return rc;
}

static unsigned char *address_of(const streamer_publication *p, const struct placed_storage *s)
{
        const struct mapping *mapping = &p->lease->segments[p->segments[s->segment].number];
        return (unsigned char *)(uintptr_t)mapping->data + s->offset;
}

int streamer_publish_storage(streamer_publication *publication, size_t i, void **data)
{
        int rc = check_begun(publication, "publish_storage")
                         ?: args_pointer(publication->client, "publish_storage", "data", data);
        if (rc != 0)
                return rc;
        if (i >= publication->n_storages)
                return fail(publication->client, STREAMER_EINVAL, "publish_storage: there is no storage %zu", i);
        struct placed_storage *s = &publication->storages[i];
        if (s->bytes > 0)
                rc = request_segment(publication, &publication->segments[s->segment]);
        if (rc != 0)
                return rc;
        s->requested = true;
        *data = s->bytes > 0 ? address_of(publication, s) : NULL;
        return 0;
}

int streamer_python_protect(streamer_publication *publication)
{
        int rc = check_begun(publication, "python_protect");
        for (size_t i = 0; rc == 0 && i < publication->n_segments; i++) {
                const struct lent_segment *s = &publication->segments[i];
                if (!s->mapped)
                        continue;
                struct mapping *mapping = &publication->lease->segments[s->number];
                uint64_t bytes = i + 1 < publication->n_segments ? s->bytes : publication->table_offset;
                rc = mapping->kind->protect
                             ? mapping->kind->protect(mapping, bytes, s->reading, publication->client->fault)
                             : fail(publication->client, STREAMER_EUNSUPPORTED,
                                    "publish: a process has no memory of its own in place of a GPU's");
        }
        return rc;
}

/* ---- the table ---- */

static int check_tensor(const streamer_publication *p, const streamer_published_tensor *t)
{
        const struct streamer_client *c = p->client;
        uint64_t extent;
        int rc = args_text(c, "publish_tensor", "tensor->name", t->name)
                         ?: args_pointer(c, "publish_tensor", "tensor->dtype", t->dtype);
        if (rc == 0 && t->rank > 0)
                rc = args_pointer(c, "publish_tensor", "tensor->shape", t->shape);
        if (rc == 0 && t->rank > 0)
                rc = args_pointer(c, "publish_tensor", "tensor->strides", t->strides);
        if (rc != 0)
                return rc;
        if (t->rank > PUBLISHED_MAX_RANK || t->item == 0 || t->item > PUBLISHED_MAX_ITEM)
                return fail(c, STREAMER_EINVAL, "publish_tensor: '%s': its rank or item is out of range", t->name);
        if (t->offset % t->item != 0)
                return fail(c, STREAMER_EINVAL,
                            "publish_tensor: '%s': its offset %" PRIu64 " is not a multiple of its item, %" PRIu32
                            " bytes: let the storage begin where its memory is aligned for every tensor in it",
                            t->name, t->offset, t->item);
        if (t->storage >= p->n_storages)
                return fail(c, STREAMER_EINVAL, "publish_tensor: '%s': there is no storage %zu", t->name, t->storage);
        uint64_t bytes = p->storages[t->storage].bytes;
        if (!published_extent(t->rank, t->shape, t->strides, t->item, &extent) || t->offset > bytes ||
            extent > bytes - t->offset)
                return fail(c, STREAMER_EINVAL, "publish_tensor: '%s' does not lie in storage %zu", t->name,
                            t->storage);
        return 0;
}

static int check_writer(const streamer_publication *p, const char *call)
{
        return p->writer.failed ? fail(p->client, STREAMER_ENOMEM, "%s: no memory", call) : 0;
}

int streamer_publish_tensor(streamer_publication *publication, const streamer_published_tensor *tensor)
{
        streamer_published_tensor t;
        int rc = check_begun(publication, "publish_tensor")
                         ?: args_copy(publication->client, "publish_tensor", "tensor", &t, sizeof(t), tensor)
                         ?: args_flags(publication->client, "publish_tensor", t.flags, TENSOR_FLAGS)
                         ?: check_tensor(publication, &t);
        if (rc != 0)
                return rc;
        const struct published_tensor entry = {.rank = t.rank,
                                               .item = t.item,
                                               .storage = t.storage,
                                               .offset = t.offset,
                                               .kind = (uint32_t)t.kind,
                                               .flags = t.flags,
                                               .alias = t.alias};
        const struct published_text text = {t.name, t.dtype};
        published_add_tensor(&publication->writer, &entry, &text, t.shape, t.strides);
        return check_writer(publication, "publish_tensor");
}

int streamer_publish_attribute(streamer_publication *publication, const char *name, const char *value)
{
        int rc = check_begun(publication, "publish_attribute")
                         ?: args_text(publication->client, "publish_attribute", "name", name)
                         ?: args_pointer(publication->client, "publish_attribute", "value", value);
        if (rc != 0)
                return rc;
        published_add_attribute(&publication->writer, name, value);
        return check_writer(publication, "publish_attribute");
}

/* ---- commit ---- */

static int make_table(streamer_publication *p, void **bytes, uint64_t *size, struct placed_storage *at)
{
        struct streamer_client *c = p->client;
        const size_t last = p->n_segments - 1;
        p->writer.storages.used = 0; /* of an earlier attempt */
        *at = (struct placed_storage){.segment = (uint32_t)last, .offset = p->table_offset};
        for (size_t i = 0; i < p->n_storages; i++) {
                const struct placed_storage *s = &p->storages[i];
                const struct published_storage entry = {.offset = s->bytes > 0 ? s->offset : 0,
                                                        .bytes = s->bytes,
                                                        .segment = s->bytes > 0 ? p->segments[s->segment].number : 0};
                if (!s->requested)
                        return fail(c, STREAMER_EINVAL, "publish_commit: storage %zu was not requested", i);
                published_add_storage(&p->writer, &entry);
        }
        *size = published_size(&p->writer);
        uint64_t reserved = p->segments[last].bytes - at->offset;
        uint64_t most = p->n_segments < MANIFEST_MAX_SEGMENTS ? PUBLISHED_MAX_SIZE : reserved;
        if (*size > most)
                return fail(c, STREAMER_ELIMIT,
                            "publish_commit: the table of names, shapes and texts takes %" PRIu64 " bytes, and %" PRIu64
                            " are left for it",
                            *size, most);
        if (*size > reserved) {
                *at = (struct placed_storage){.segment = (uint32_t)p->n_segments};
                p->table_offset = 0;
                p->segments[p->n_segments++] = (struct lent_segment){.bytes = segment_size(p, *size), .reading = -1};
        }
        at->bytes = *size;
        *bytes = p->writer.failed ? NULL : malloc(*size);
        if (!*bytes)
                return fail(c, STREAMER_ENOMEM, "publish_commit: no memory");
        published_finish(&p->writer, *bytes);
        return 0;
}

/* As the daemon will. */
static int check_table(const streamer_publication *p, const void *bytes, uint64_t size, const struct placed_storage *at)
{
        struct published_view view;
        char text[400];
        const struct published_storage place = {
                .offset = at->offset, .bytes = size, .segment = p->segments[at->segment].number};
        int r = lease_open_published(p->lease, &view, bytes, place, text, sizeof(text));
        if (r == -2)
                return fail(p->client, STREAMER_ENOMEM, "publish_commit: no memory");
        return r == 0 ? 0 : fail(p->client, STREAMER_EINVAL, "publish_commit: %s", text);
}

static int write_table(streamer_publication *p, struct placed_storage *at)
{
        void *made = NULL;
        uint64_t size = 0;
        int rc = make_table(p, &made, &size, at);
        cleanup_free void *bytes = made;
        if (rc == 0)
                rc = request_segment(p, &p->segments[at->segment]) ?: check_table(p, bytes, size, at);
        if (rc != 0)
                return rc;
        const struct mapping *mapping = &p->lease->segments[p->segments[at->segment].number];
        return mapping->kind->copy(mapping, at->offset, NULL, bytes, size, p->client->fault);
}

static int make_private(streamer_publication *p)
{
        p->is_private = true;
        for (size_t i = 0; i < p->n_segments; i++) {
                struct lent_segment *s = &p->segments[i];
                struct mapping *mapping = &p->lease->segments[s->number];
                int rc = s->mapped ? mapping->kind->make_private(mapping, s->reading, p->client->fault) : 0;
                if (rc != 0)
                        return rc;
        }
        return 0;
}

static int take_commit(streamer_publication *p, const struct call *call)
{
        struct streamer_lease *lease = p->lease;
        int rc = lease_map_manifest(lease, call);
        if (rc != 0)
                return rc;
        if (lease->manifest.header->n_segments != lease->n_segments)
                return fail(p->client, STREAMER_ECORRUPT, "publish_commit: the manifest has other segments");
        for (size_t i = 0; i < lease->n_segments; i++)
                if (lease->segments[i].size < manifest_segment(&lease->manifest, i)->size)
                        return fail(p->client, STREAMER_ECORRUPT,
                                    "publish_commit: a segment is smaller than the manifest says");
        lock_scope(&p->client->lock);
        lease_update(lease, &call->reply.unpacked.data);
        atomic_store(&lease->complete, true);
        return 0;
}

/* Hashing takes as long as the memory is large. */
static int commit(streamer_publication *p, const struct placed_storage *table)
{
        struct call call = {0};
        struct request request = {.verb = VERB_publish_commit,
                                  .u.publish_commit = {.claim = p->claim,
                                                       .segment = p->segments[table->segment].number,
                                                       .offset = table->offset,
                                                       .bytes = table->bytes}};
        int rc = channel_call(p->client, &request, &call, NEVER);
        if (rc != 0)
                return lost(p, rc);
        rc = take_commit(p, &call);
        call_deinit(&call);
        return rc;
}

static void publication_free(streamer_publication *p)
{
        for (size_t i = 0; i < p->n_segments; i++)
                if (p->segments[i].mapped && p->segments[i].reading >= 0)
                        close(p->segments[i].reading);
        published_writer_deinit(&p->writer);
        channel_unref(p->client);
        free(p->storages);
        free(p);
}

int streamer_publish_commit(streamer_publication *publication, streamer_lease **lease)
{
        struct placed_storage table;
        int rc = check_begun(publication, "publish_commit")
                         ?: args_pointer(publication->client, "publish_commit", "lease", lease)
                         ?: write_table(publication, &table)
                         ?: make_private(publication)
                         ?: commit(publication, &table);
        if (rc != 0)
                return rc;
        *lease = publication->lease;
        publication_free(publication);
        return 0;
}

void streamer_publish_abort(streamer_publication *publication)
{
        if (!publication)
                return;
        struct streamer_client *c = publication->client;
        /* In a forked child the publication is the parent's, and the lock may be held for ever. */
        if (!channel_forked(c)) {
                struct request request = {.verb = VERB_publish_abort, .u.publish_abort = {.claim = publication->claim}};
                lock_scope(&c->lock);
                channel_post(c, &request);
        }
        if (publication->lease)
                lease_unref(publication->lease);
        publication_free(publication);
}
