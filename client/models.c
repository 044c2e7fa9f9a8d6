/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of models: the daemon's reply to "list", whose texts live as long as it does.
 */
#include "client/args.h"
#include "client/call.h"

struct streamer_model_list {
        json_t *reply;
};

static const char *text_of(const json_t *o, const char *key)
{
        const char *text = json_string_value(json_object_get(o, key));
        return text ? text : "";
}

/* One over 2^63 - 1 is a text (json.h). */
static uint64_t number_of(const json_t *o, const char *key)
{
        const json_t *v = json_object_get(o, key);
        return json_is_string(v) ? strtoull(json_string_value(v), NULL, 10) : (uint64_t)json_integer_value(v);
}

static int flag_of(const json_t *o, const char *key)
{
        return json_is_true(json_object_get(o, key));
}

static const json_t *models_of(const streamer_model_list *list)
{
        return json_object_get(list->reply, "models");
}

int streamer_list(streamer_client *client, streamer_model_list **list)
{
        json_auto_t *args = json_object();
        int rc = args_client(client, "list") ?: args_pointer(client, "list", "list", list);
        if (rc != 0)
                return rc;
        struct streamer_model_list *made = calloc(1, sizeof(*made));
        rc = args && made ? call_json(client, "list", args, &made->reply)
                          : fail(client, STREAMER_ENOMEM, "list: no memory");
        if (rc == 0 && !json_is_array(models_of(made)))
                rc = fail(client, STREAMER_EPROTO, "list: the daemon's reply has no models");
        if (rc == 0)
                *list = made;
        else
                streamer_model_list_free(made);
        return rc;
}

size_t streamer_model_list_count(const streamer_model_list *list)
{
        return args_pointer(NULL, "model_list_count", "list", list) == 0 ? json_array_size(models_of(list)) : 0;
}

/* Model i, or NULL with the code and its text. */
static const json_t *find_model(const streamer_model_list *list, const char *call, size_t i, int *rc)
{
        *rc = args_pointer(NULL, call, "list", list);
        const json_t *model = *rc == 0 ? json_array_get(models_of(list), i) : NULL;
        if (*rc == 0 && !model)
                *rc = fault_set(NULL, STREAMER_ENOENT, "%s: the list has no model %zu", call, i);
        return model;
}

int streamer_model_list_get(const streamer_model_list *list, size_t i, streamer_model *model)
{
        int rc = args_out(NULL, "model_list_get", "model", model);
        const json_t *o = rc == 0 ? find_model(list, "model_list_get", i, &rc) : NULL;
        if (!o)
                return rc;
        const streamer_model m = {.name = text_of(o, "name"),
                                  .source = text_of(o, "source"),
                                  .state = text_of(o, "state"),
                                  .digest = text_of(o, "digest"),
                                  .error = text_of(o, "error"),
                                  .generation = number_of(o, "generation"),
                                  .bytes = number_of(o, "bytes"),
                                  .tensors = number_of(o, "tensors"),
                                  .leases = number_of(o, "leases"),
                                  .load_ns = number_of(o, "load_ns"),
                                  .pinned = flag_of(o, "pinned"),
                                  .n_devices = json_array_size(json_object_get(o, "devices"))};
        args_fill(model, &m, sizeof(m));
        return 0;
}

int streamer_model_list_device_get(const streamer_model_list *list, size_t i, size_t j, streamer_model_device *device)
{
        int rc = args_out(NULL, "model_list_device_get", "device", device);
        const json_t *model = rc == 0 ? find_model(list, "model_list_device_get", i, &rc) : NULL;
        const json_t *o = json_array_get(json_object_get(model, "devices"), j);
        if (rc == 0 && !o)
                return fault_set(NULL, STREAMER_ENOENT, "model_list_device_get: the model has no device %zu", j);
        if (rc != 0)
                return rc;
        const streamer_model_device d = {.device = text_of(o, "device"),
                                         .state = text_of(o, "state"),
                                         .digest = text_of(o, "digest"),
                                         .page_kind = text_of(o, "page_kind"),
                                         .error = text_of(o, "error"),
                                         .bytes = number_of(o, "bytes"),
                                         .leases = number_of(o, "leases"),
                                         .rank = json_object_get(o, "rank") ? (int64_t)number_of(o, "rank") : -1,
                                         .pinned = flag_of(o, "pinned")};
        args_fill(device, &d, sizeof(d));
        return 0;
}

void streamer_model_list_free(streamer_model_list *list)
{
        if (!list)
                return;
        json_decref(list->reply);
        free(list);
}
