/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's text of a model that it does not know is "NAME: no such model", with what became of it in parentheses
 * where it had one of that name: only the first is followed by a suggestion, of the models that can be attached to.
 */
#include "client/missing.h"

#include "client/util.h"
#include "proto/distance.h"

#include <stdio.h>

#define NAMES_MAX 500 /* that are compared, in their order */

static bool is_unknown(const char *model, const char *text)
{
        static const char says[] = ": no such model";
        size_t len = strlen(model);
        return strncmp(text, model, len) == 0 && strcmp(text + len, says) == 0;
}

static bool can_be_meant(const msgpack_object *model)
{
        return !object_str_eq(model, "state", "failed") && !object_str_eq(model, "state", "draining");
}

/* malloc'd; NULL: none is similar. */
static char *find_nearest(const msgpack_object *models, const char *name)
{
        const char *s;
        size_t len, best = name_distance_limit(name);
        char *nearest = NULL;
        for (uint32_t i = 0; i < models->via.array.size; i++) {
                const msgpack_object *model = &models->via.array.ptr[i];
                if (!object_str(model, "name", &s, &len) || !can_be_meant(model))
                        continue;
                cleanup_free char *other = strndup(s, len);
                size_t distance = other ? name_distance(name, other) : SIZE_MAX;
                if (distance >= best)
                        continue;
                best = distance;
                free(nearest);
                nearest = other;
                other = NULL;
        }
        return nearest;
}

char *missing_model_hint(struct streamer_client *c, const char *model, const char *text)
{
        struct call call = {0};
        struct request request = {.verb = VERB_list, .u.list = {.limit = NAMES_MAX}};
        if (!is_unknown(model, text) || channel_call(c, &request, &call, channel_deadline(c)) != 0)
                return NULL;
        const msgpack_object *models = object_get(&call.reply.unpacked.data, "models");
        bool is_list = models && models->type == MSGPACK_OBJECT_ARRAY;
        cleanup_free char *nearest = is_list ? find_nearest(models, model) : NULL;
        char *hint = NULL;
        if (nearest && asprintf(&hint, "; the nearest is '%s'", nearest) < 0)
                hint = NULL;
        call_deinit(&call);
        return hint;
}

int missing_model_explain(struct streamer_client *c, const char *model, int rc)
{
        if (rc != STREAMER_ENOENT || !model || !is_unknown(model, fault_text(c->fault)))
                return rc;
        cleanup_free char *text = strdup(fault_text(c->fault)), *hint = NULL;
        if (!text)
                return rc;
        hint = missing_model_hint(c, model, text);
        return fail(c, rc, "%s%s", text, hint ?: "");
}
