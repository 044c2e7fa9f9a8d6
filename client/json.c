/* SPDX-License-Identifier: Apache-2.0
 *
 * The two directions, value by value. Depth is bounded on both sides before it comes here: by
 * codec_check() for msgpack, by jansson's parser for JSON.
 */
#include "client/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *from_u64(uint64_t v)
{
        char text[24];
        if (v <= INT64_MAX)
                return json_integer((json_int_t)v);
        snprintf(text, sizeof(text), "%" PRIu64, v);
        return json_string(text);
}

static json_t *from_bin(const msgpack_object_bin *bin)
{
        char *hex = malloc(2 * (size_t)bin->size + 1);
        if (!hex)
                return NULL;
        hex[0] = 0;
        for (uint32_t i = 0; i < bin->size; i++)
                snprintf(hex + 2 * (size_t)i, 3, "%02x", (unsigned char)bin->ptr[i]);
        json_t *s = json_string(hex);
        free(hex);
        return s;
}

static json_t *from_array(const msgpack_object_array *array)
{
        json_t *list = json_array();
        for (uint32_t i = 0; list && i < array->size; i++) {
                if (json_array_append_new(list, json_from_object(&array->ptr[i])) < 0) {
                        json_decref(list);
                        return NULL;
                }
        }
        return list;
}

static int put_pair(json_t *object, const msgpack_object_kv *pair)
{
        if (pair->key.type != MSGPACK_OBJECT_STR)
                return -1;
        const msgpack_object_str *key = &pair->key.via.str;
        return json_object_setn_new(object, key->ptr, key->size, json_from_object(&pair->val));
}

static json_t *from_map(const msgpack_object_map *map)
{
        json_t *object = json_object();
        for (uint32_t i = 0; object && i < map->size; i++) {
                if (put_pair(object, &map->ptr[i]) < 0) {
                        json_decref(object);
                        return NULL;
                }
        }
        return object;
}

json_t *json_from_object(const msgpack_object *o)
{
        switch (o->type) {
        case MSGPACK_OBJECT_NIL:
        case MSGPACK_OBJECT_EXT:
                return json_null();
        case MSGPACK_OBJECT_BOOLEAN:
                return json_boolean(o->via.boolean);
        case MSGPACK_OBJECT_POSITIVE_INTEGER:
                return from_u64(o->via.u64);
        case MSGPACK_OBJECT_NEGATIVE_INTEGER:
                return json_integer(o->via.i64);
        case MSGPACK_OBJECT_FLOAT32:
        case MSGPACK_OBJECT_FLOAT64:
                return json_real(o->via.f64);
        case MSGPACK_OBJECT_STR:
                return json_stringn(o->via.str.ptr, o->via.str.size);
        case MSGPACK_OBJECT_BIN:
                return from_bin(&o->via.bin);
        case MSGPACK_OBJECT_ARRAY:
                return from_array(&o->via.array);
        case MSGPACK_OBJECT_MAP:
                return from_map(&o->via.map);
        }
        return NULL;
}

static void pack_array(struct writer *w, const json_t *value)
{
        writer_array(w, json_array_size(value));
        for (size_t i = 0; i < json_array_size(value); i++)
                json_write(w, json_array_get(value, i));
}

static void pack_object(struct writer *w, const json_t *value)
{
        const char *key;
        json_t *item;
        writer_map(w, json_object_size(value));
        json_object_foreach((json_t *)(uintptr_t)value, key, item)
        {
                writer_key(w, key);
                json_write(w, item);
        }
}

void json_write(struct writer *w, const json_t *value)
{
        switch (json_typeof(value)) {
        case JSON_OBJECT:
                pack_object(w, value);
                break;
        case JSON_ARRAY:
                pack_array(w, value);
                break;
        case JSON_STRING:
                writer_strn(w, json_string_value(value), json_string_length(value));
                break;
        case JSON_INTEGER:
                writer_i64(w, json_integer_value(value));
                break;
        case JSON_REAL:
                w->failed |= msgpack_pack_double(&w->pk, json_real_value(value)) != 0;
                break;
        case JSON_TRUE:
        case JSON_FALSE:
                writer_bool(w, json_is_true(value));
                break;
        case JSON_NULL:
                writer_str(w, NULL);
                break;
        }
}
