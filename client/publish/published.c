/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a published model. It is copied when it is first used, so that it is read the same on every device, and
 * checked as a whole; then it does not change.
 */
#include "client/args.h"
#include "client/publish/publication.h"
#include "client/util.h"

#include <inttypes.h>
#include <stdio.h>

struct published {
        struct published_view view;
        size_t *by_name;  /* tensors, in order of names; behind the table */
        uint64_t table[]; /* aligned to 8 bytes */
};

static const char *name_of(const struct published_view *view, uint64_t i)
{
        return view->strings + published_tensor(view, i)->name_off;
}

static int by_name(const void *a, const void *b, void *view)
{
        return strcmp(name_of(view, *(const size_t *)a), name_of(view, *(const size_t *)b));
}

/* ---- reading ---- */

static int find_table(const struct streamer_lease *lease, const struct manifest_record **record)
{
        const struct manifest_view *m = &lease->manifest;
        const char *why = "";
        int64_t i = manifest_find(m, PUBLISHED_TABLE_NAME, strlen(PUBLISHED_TABLE_NAME), &why);
        if (i == -1)
                return fail(lease->client, STREAMER_ENOENT, "%s: is not a published model", lease->model);
        if (i < 0 || manifest_check(m, (uint64_t)i, &why) < 0)
                return fail(lease->client, STREAMER_ECORRUPT, "the table of the published model: %s", why);
        *record = manifest_record(m, (uint64_t)i);
        if ((*record)->bytes > PUBLISHED_MAX_SIZE || (*record)->segment >= lease->n_segments)
                return fail(lease->client, STREAMER_ECORRUPT, "the table of the published model is out of bounds");
        return 0;
}

int lease_open_published(const struct streamer_lease *lease, struct published_view *view, const void *table,
                         struct published_storage place, char *text, size_t size)
{
        uint64_t sizes[MANIFEST_MAX_SEGMENTS];
        for (size_t i = 0; i < lease->n_segments; i++)
                sizes[i] = lease->segments[i].size;
        const struct published_place where = {sizes, lease->n_segments, place, NULL};
        return published_open(view, table, place.bytes, &where, text, size);
}

static int open_table(const struct streamer_lease *lease, struct published *p, const struct manifest_record *record)
{
        char text[400];
        const struct published_storage place = {
                .offset = record->offset, .bytes = record->bytes, .segment = record->segment};
        int r = lease_open_published(lease, &p->view, p->table, place, text, sizeof(text));
        if (r == -2)
                return fail(lease->client, STREAMER_ENOMEM, "no memory to read the table of the published model");
        return r == 0 ? 0 : fail(lease->client, STREAMER_ECORRUPT, "the table of the published model: %s", text);
}

static int read_table(const struct streamer_lease *lease, struct published **out)
{
        const struct manifest_record *record = NULL;
        int rc = find_table(lease, &record);
        if (rc != 0)
                return rc;
        /* A table has more bytes for a tensor than its index takes. */
        size_t size = (record->bytes + 7) / 8 * 8;
        cleanup_free struct published *p = malloc(sizeof(*p) + 2 * size);
        if (!p)
                return fail(lease->client, STREAMER_ENOMEM, "no memory to read the table of the published model");
        const struct mapping *mapping = &lease->segments[record->segment];
        rc = mapping->kind->copy(mapping, record->offset, p->table, NULL, record->bytes, lease->client->fault)
                     ?: open_table(lease, p, record);
        if (rc != 0)
                return rc;
        p->by_name = (void *)((unsigned char *)p->table + size);
        for (size_t i = 0; i < p->view.header->n_tensors; i++)
                p->by_name[i] = i;
        if (p->view.header->n_tensors > 0)
                qsort_r(p->by_name, p->view.header->n_tensors, sizeof(*p->by_name), by_name, &p->view);
        *out = p;
        p = NULL;
        return 0;
}

static int get_table(struct streamer_lease *lease, const char *call, const struct published **out)
{
        int rc = args_lease(lease, call);
        if (rc != 0)
                return rc;
        if (!atomic_load(&lease->complete) || !lease->manifest_map)
                return fail(lease->client, STREAMER_ENOENT, "%s: the model is loading: it is not published", call);
        struct published *p = __atomic_load_n(&lease->published, __ATOMIC_ACQUIRE), *expected = NULL;
        if (!p) {
                rc = read_table(lease, &p);
                if (rc != 0)
                        return rc;
                if (!__atomic_compare_exchange_n(&lease->published, &expected, p, false, __ATOMIC_ACQ_REL,
                                                 __ATOMIC_ACQUIRE)) {
                        free(p); /* another thread was first */
                        p = expected;
                }
        }
        *out = p;
        return 0;
}

/* ---- queries ---- */

int streamer_published_count(streamer_lease *lease, size_t *tensors, size_t *storages, size_t *attributes)
{
        const struct published *p;
        int rc = get_table(lease, "published_count", &p);
        if (rc != 0)
                return rc;
        if (tensors)
                *tensors = p->view.header->n_tensors;
        if (storages)
                *storages = p->view.header->n_storages;
        if (attributes)
                *attributes = p->view.header->n_attributes;
        return 0;
}

static void fill(const struct streamer_lease *lease, const struct published_view *view, uint64_t i,
                 streamer_published_tensor *tensor)
{
        const struct published_tensor *t = published_tensor(view, i);
        const struct published_storage *s = published_storage(view, t->storage);
        uint64_t extent = 0;
        streamer_published_tensor out = {.name = view->strings + t->name_off,
                                         .dtype = view->strings + t->dtype_off,
                                         .item = t->item,
                                         .kind = (streamer_published_kind)t->kind,
                                         .flags = t->flags,
                                         .alias = t->alias,
                                         .rank = t->rank,
                                         .shape = view->numbers + t->numbers_off,
                                         .strides = view->numbers + t->numbers_off + t->rank,
                                         .storage = t->storage,
                                         .offset = t->offset};
        published_extent(t->rank, out.shape, out.strides, t->item, &extent);
        if (extent > 0)
                out.data = (const char *)lease->segments[s->segment].data + s->offset + t->offset;
        args_fill(tensor, &out, sizeof(out));
}

int streamer_published_get(streamer_lease *lease, size_t i, streamer_published_tensor *tensor)
{
        const struct published *p;
        int rc = get_table(lease, "published_get", &p) ?: args_out(lease->client, "published_get", "tensor", tensor);
        if (rc == 0 && i >= p->view.header->n_tensors)
                rc = fail(lease->client, STREAMER_ENOENT, "published_get: no such tensor: %zu", i);
        if (rc == 0)
                fill(lease, &p->view, i, tensor);
        return rc;
}

int streamer_published_find(streamer_lease *lease, const char *name, streamer_published_tensor *tensor)
{
        const struct published *p;
        int rc = get_table(lease, "published_find", &p)
                         ?: args_pointer(lease->client, "published_find", "name", name)
                         ?: args_out(lease->client, "published_find", "tensor", tensor);
        if (rc != 0)
                return rc;
        for (size_t from = 0, to = p->view.header->n_tensors; from < to;) {
                size_t middle = from + (to - from) / 2;
                int order = strcmp(name, name_of(&p->view, p->by_name[middle]));
                if (order == 0) {
                        fill(lease, &p->view, p->by_name[middle], tensor);
                        return 0;
                }
                if (order < 0)
                        to = middle;
                else
                        from = middle + 1;
        }
        return fail(lease->client, STREAMER_ENOENT, "published_find: no such tensor: '%s'", name);
}

int streamer_published_storage(streamer_lease *lease, size_t i, streamer_tensor *storage)
{
        const struct published *p;
        char name[48];
        int rc = get_table(lease, "published_storage", &p);
        if (rc == 0 && i >= p->view.header->n_storages)
                rc = fail(lease->client, STREAMER_ENOENT, "published_storage: no such storage: %zu", i);
        if (rc != 0)
                return rc;
        snprintf(name, sizeof(name), PUBLISHED_STORAGE_NAME, (unsigned long long)i);
        return streamer_tensor_find(lease, name, storage);
}

int streamer_published_attribute(streamer_lease *lease, size_t i, const char **name, const char **value)
{
        const struct published *p;
        int rc = get_table(lease, "published_attribute", &p)
                         ?: args_pointer(lease->client, "published_attribute", "name", name)
                         ?: args_pointer(lease->client, "published_attribute", "value", value);
        if (rc == 0 && i >= p->view.header->n_attributes)
                rc = fail(lease->client, STREAMER_ENOENT, "published_attribute: there is no attribute %zu", i);
        if (rc != 0)
                return rc;
        const struct published_attribute *a = published_attribute(&p->view, i);
        *name = p->view.strings + a->name_off;
        *value = p->view.strings + a->value_off;
        return 0;
}
