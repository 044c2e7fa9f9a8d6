/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of models, page by page until the daemon names no next one.
 */
#include "client/args.h"
#include "client/channel.h"
#include "client/util.h"

/* The strings of a model and of its devices are malloc'd. */
struct entry {
        streamer_model model;
        streamer_model_device *devices;
};

struct streamer_model_list {
        struct entry *entries;
        size_t n, cap;
};

static bool copy_str(const msgpack_object *o, const char *key, const char **to)
{
        const char *s;
        size_t len;
        *to = object_str(o, key, &s, &len) ? strndup(s, len) : strdup("");
        return *to != NULL;
}

static int flag_of(const msgpack_object *o, const char *key)
{
        bool set = false;
        return object_bool(o, key, &set) && set;
}

static bool read_device(streamer_model_device *d, const msgpack_object *o)
{
        uint64_t rank;
        *d = (streamer_model_device){.rank = -1, .pinned = flag_of(o, "pinned")};
        object_u64(o, "bytes", &d->bytes);
        object_u64(o, "leases", &d->leases);
        if (object_u64(o, "rank", &rank))
                d->rank = (int64_t)rank;
        return copy_str(o, "device", &d->device) && copy_str(o, "state", &d->state) &&
               copy_str(o, "digest", &d->digest) && copy_str(o, "page_kind", &d->page_kind) &&
               copy_str(o, "error", &d->error);
}

static bool read_devices(struct entry *e, const msgpack_object *list)
{
        if (!list || list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size == 0)
                return true;
        e->devices = calloc(list->via.array.size, sizeof(*e->devices));
        if (!e->devices)
                return false;
        for (uint32_t i = 0; i < list->via.array.size; i++)
                if (!read_device(&e->devices[e->model.n_devices++], &list->via.array.ptr[i]))
                        return false;
        return true;
}

static bool read_model(struct entry *e, const msgpack_object *o)
{
        streamer_model *m = &e->model;
        *e = (struct entry){.model.pinned = flag_of(o, "pinned")};
        object_u64(o, "generation", &m->generation);
        object_u64(o, "bytes", &m->bytes);
        object_u64(o, "tensors", &m->tensors);
        object_u64(o, "leases", &m->leases);
        object_u64(o, "load_ns", &m->load_ns);
        return copy_str(o, "name", &m->name) && copy_str(o, "source", &m->source) && copy_str(o, "state", &m->state) &&
               copy_str(o, "digest", &m->digest) && copy_str(o, "error", &m->error) &&
               read_devices(e, object_get(o, "devices"));
}

static bool add_model(struct streamer_model_list *list, const msgpack_object *o)
{
        if (list->n == list->cap) {
                size_t cap = list->cap == 0 ? 16 : 2 * list->cap;
                struct entry *entries = realloc(list->entries, cap * sizeof(*entries));
                if (!entries)
                        return false;
                list->entries = entries;
                list->cap = cap;
        }
        return read_model(&list->entries[list->n++], o);
}

/* One page; *after becomes the name to go on with, NULL after the last page. */
static int add_page(streamer_client *c, struct streamer_model_list *list, char **after)
{
        struct call call = {0};
        struct request request = {.verb = VERB_list, .u.list = {.after = *after}};
        int rc = channel_call(c, &request, &call, channel_deadline(c));
        if (rc != 0)
                return rc;
        const msgpack_object *reply = &call.reply.unpacked.data, *models = object_get(reply, "models");
        if (!models || models->type != MSGPACK_OBJECT_ARRAY)
                rc = fail(c, STREAMER_EPROTO, "list: the daemon's reply has no models");
        for (uint32_t i = 0; rc == 0 && i < models->via.array.size; i++)
                if (!add_model(list, &models->via.array.ptr[i]))
                        rc = fail(c, STREAMER_ENOMEM, "list: no memory");

        const char *next;
        size_t len;
        free(*after);
        bool more = rc == 0 && object_str(reply, "next", &next, &len);
        *after = more ? strndup(next, len) : NULL;
        if (more && !*after)
                rc = fail(c, STREAMER_ENOMEM, "list: no memory");
        call_deinit(&call);
        return rc;
}

int streamer_list(streamer_client *client, streamer_model_list **list)
{
        cleanup_free char *after = NULL;
        int rc = args_client(client, "list");
        if (rc == 0)
                rc = args_pointer(client, "list", "list", list);
        if (rc != 0)
                return rc;
        struct streamer_model_list *made = calloc(1, sizeof(*made));
        if (!made)
                return fail(client, STREAMER_ENOMEM, "list: no memory");
        do {
                rc = add_page(client, made, &after);
        } while (rc == 0 && after);
        if (rc != 0) {
                streamer_model_list_free(made);
                return rc;
        }
        *list = made;
        return 0;
}

size_t streamer_model_list_count(const streamer_model_list *list)
{
        return args_pointer(NULL, "model_list_count", "list", list) == 0 ? list->n : 0;
}

/* Entry i, or NULL with the code and its text. */
static const struct entry *find_entry(const streamer_model_list *list, const char *call, size_t i, int *rc)
{
        *rc = args_pointer(NULL, call, "list", list);
        if (*rc == 0 && i >= list->n)
                *rc = fault_set(NULL, STREAMER_ENOENT, "%s: the list has no model %zu", call, i);
        return *rc == 0 ? &list->entries[i] : NULL;
}

int streamer_model_list_get(const streamer_model_list *list, size_t i, streamer_model *model)
{
        int rc = args_out(NULL, "model_list_get", "model", model);
        const struct entry *e = rc == 0 ? find_entry(list, "model_list_get", i, &rc) : NULL;
        if (e)
                args_fill(model, &e->model, sizeof(e->model));
        return rc;
}

int streamer_model_list_device_get(const streamer_model_list *list, size_t i, size_t j, streamer_model_device *device)
{
        int rc = args_out(NULL, "model_list_device_get", "device", device);
        const struct entry *e = rc == 0 ? find_entry(list, "model_list_device_get", i, &rc) : NULL;
        if (e && j >= e->model.n_devices)
                return fault_set(NULL, STREAMER_ENOENT, "model_list_device_get: the model has no device %zu", j);
        if (e)
                args_fill(device, &e->devices[j], sizeof(e->devices[j]));
        return rc;
}

static void free_strings(const char *const *strings, size_t n)
{
        for (size_t i = 0; i < n; i++)
                free((void *)(uintptr_t)strings[i]);
}

static void entry_deinit(const struct entry *e)
{
        const streamer_model *m = &e->model;
        free_strings((const char *const[]){m->name, m->source, m->state, m->digest, m->error}, 5);
        for (size_t i = 0; i < m->n_devices; i++) {
                const streamer_model_device *d = &e->devices[i];
                free_strings((const char *const[]){d->device, d->state, d->digest, d->page_kind, d->error}, 5);
        }
        free(e->devices);
}

void streamer_model_list_free(streamer_model_list *list)
{
        if (!list)
                return;
        for (size_t i = 0; i < list->n; i++)
                entry_deinit(&list->entries[i]);
        free(list->entries);
        free(list);
}
