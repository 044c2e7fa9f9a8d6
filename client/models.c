/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of models, page by page until the daemon names no next one, and unload.
 */
#include "client/channel.h"
#include "client/util.h"

struct streamer_model_list {
        streamer_model *models; /* their strings are malloc'd */
        size_t n, cap;
};

static bool copy_str(const msgpack_object *o, const char *key, const char **to)
{
        const char *s;
        size_t len;
        *to = object_str(o, key, &s, &len) ? strndup(s, len) : strdup("");
        return *to != NULL;
}

static bool add_model(struct streamer_model_list *list, const msgpack_object *o)
{
        if (list->n == list->cap) {
                size_t cap = list->cap == 0 ? 16 : 2 * list->cap;
                streamer_model *models = realloc(list->models, cap * sizeof(*models));
                if (!models)
                        return false;
                list->models = models;
                list->cap = cap;
        }
        streamer_model *m = &list->models[list->n++];
        *m = (streamer_model){0};
        object_u64(o, "generation", &m->generation);
        object_u64(o, "bytes", &m->bytes);
        object_u64(o, "tensors", &m->tensors);
        object_u64(o, "leases", &m->leases);
        object_u64(o, "load_ns", &m->load_ns);
        return copy_str(o, "name", &m->name) && copy_str(o, "source", &m->source) && copy_str(o, "state", &m->state) &&
               copy_str(o, "digest", &m->digest);
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
        *after = rc == 0 && object_str(reply, "next", &next, &len) ? strndup(next, len) : NULL;
        call_deinit(&call);
        return rc;
}

int streamer_list(streamer_client *client, streamer_model_list **list)
{
        cleanup_free char *after = NULL;
        int rc = channel_check(client);
        if (rc != 0)
                return rc;
        struct streamer_model_list *made = calloc(1, sizeof(*made));
        if (!list || !made) {
                free(made);
                return fail(client, list ? STREAMER_ENOMEM : STREAMER_EINVAL, "list: no memory or no place for it");
        }
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
        return list->n;
}

int streamer_model_list_get(const streamer_model_list *list, size_t i, streamer_model *model)
{
        if (i >= list->n)
                return STREAMER_ENOENT;
        *model = list->models[i];
        return 0;
}

void streamer_model_list_free(streamer_model_list *list)
{
        if (!list)
                return;
        for (size_t i = 0; i < list->n; i++) {
                const streamer_model *m = &list->models[i];
                const char *const strings[] = {m->name, m->source, m->state, m->digest};
                for (size_t k = 0; k < sizeof(strings) / sizeof(strings[0]); k++)
                        free((void *)(uintptr_t)strings[k]);
        }
        free(list->models);
        free(list);
}

int streamer_unload(streamer_client *client, const char *model, unsigned flags)
{
        struct call call = {0};
        int rc = channel_check(client);
        if (rc != 0)
                return rc;
        if (!model || (flags & ~(STREAMER_UNLOAD_DRAIN | STREAMER_UNLOAD_FORCE)))
                return fail(client, STREAMER_EINVAL, "unload: a model is missing, or a flag is not known");
        struct request request = {.verb = VERB_unload,
                                  .u.unload = {.model = model,
                                               .drain = (flags & STREAMER_UNLOAD_DRAIN) != 0,
                                               .force = (flags & STREAMER_UNLOAD_FORCE) != 0}};
        rc = channel_call(client, &request, &call, channel_deadline(client));
        if (rc == 0)
                call_deinit(&call);
        return rc;
}

int streamer_pin(streamer_client *client, const char *model, int pinned)
{
        struct call call = {0};
        int rc = channel_check(client);
        if (rc != 0)
                return rc;
        if (!model)
                return fail(client, STREAMER_EINVAL, "pin: a model is missing");
        struct request request = {.verb = VERB_pin, .u.pin = {.model = model}};
        if (!pinned)
                request = (struct request){.verb = VERB_unpin, .u.unpin = {.model = model}};
        rc = channel_call(client, &request, &call, channel_deadline(client));
        if (rc == 0)
                call_deinit(&call);
        return rc;
}
