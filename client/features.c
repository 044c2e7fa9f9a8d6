/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups in the daemon's list of features. A daemon whose list is this library's own does not send it. Else it has
 * about a hundred entries, and a request has a few fields, so that a scan costs less than a microsecond a field.
 */
#include "client/features.h"

#include "client/channel.h"
#include "proto/codec.h"

#include <string.h>

/* "verb" or "verb.field" */
static bool equals(const msgpack_object *feature, const char *verb, const char *field)
{
        size_t verb_len = strlen(verb), field_len = field ? strlen(field) : 0, len = verb_len;
        if (field)
                len += 1 + field_len;
        if (feature->type != MSGPACK_OBJECT_STR || feature->via.str.size != len)
                return false;
        const char *s = feature->via.str.ptr;
        return memcmp(s, verb, verb_len) == 0 &&
               (!field || (s[verb_len] == '.' && memcmp(s + verb_len + 1, field, field_len) == 0));
}

static bool library_knows(const char *verb, const char *field)
{
        const struct verb_desc *desc = verb_find(verb, strlen(verb));
        for (size_t i = 0; desc && field && i < desc->n_fields; i++)
                if (strcmp(desc->fields[i].name, field) == 0)
                        return true;
        return desc && !field;
}

static bool has(const struct streamer_client *c, const char *verb, const char *field)
{
        uint64_t number;
        const msgpack_object *features = object_get(&c->hello.reply.unpacked.data, "features");
        if (!features && object_u64(&c->hello.reply.unpacked.data, "features_number", &number) &&
            number == features_number)
                return library_knows(verb, field);
        if (!features || features->type != MSGPACK_OBJECT_ARRAY)
                return false;
        for (uint32_t i = 0; i < features->via.array.size; i++)
                if (equals(&features->via.array.ptr[i], verb, field))
                        return true;
        return false;
}

static int refuse(const struct streamer_client *c, const char *verb, const char *field)
{
        const char *version = "", *dot = field ? "." : "";
        size_t len = 0;
        object_str(&c->hello.reply.unpacked.data, "version", &version, &len);
        if (library_knows(verb, field))
                return fail(c, STREAMER_EUNSUPPORTED,
                            "%s%s%s: the daemon (%.*s) is older than this library (" STREAMERD_VERSION
                            ") and does not support it",
                            verb, dot, field ? field : "", (int)len, version);
        return fail(c, STREAMER_EUNSUPPORTED, "%s%s%s: the daemon (%.*s) does not support it", verb, dot,
                    field ? field : "", (int)len, version);
}

int features_check_field(const struct streamer_client *c, const char *verb, const char *field)
{
        if (!c->hello.done)
                return 0;
        if (!has(c, verb, NULL))
                return refuse(c, verb, NULL);
        return field && !has(c, verb, field) ? refuse(c, verb, field) : 0;
}

int features_check(const struct streamer_client *c, const struct request *request)
{
        const struct verb_desc *verb = verb_desc(request->verb);
        int rc = features_check_field(c, verb->name, NULL);
        for (size_t i = 0; rc == 0 && i < verb->n_fields; i++)
                if (request_has(request, &verb->fields[i]))
                        rc = features_check_field(c, verb->name, verb->fields[i].name);
        return rc;
}
