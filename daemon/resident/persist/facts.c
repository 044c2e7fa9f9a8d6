/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/facts.h"

#include "daemon/base/util.h"

#include <string.h>

#define VERSION 1u

/* ---- facts ---- */

const char facts_no_memory[] = "memory";

/* Writes the key; or finds the value, NULL where there is none of this type. */
static const msgpack_object *begin(struct facts *f, const char *key, msgpack_object_type type)
{
        if (f->w != NULL) {
                if (key != NULL)
                        writer_key(f->w, key);
                return NULL;
        }
        const msgpack_object *o = key != NULL ? object_get(f->from, key) : f->from;
        return o != NULL && o->type == type ? o : NULL;
}

static bool check(struct facts *f, const char *key, bool ok)
{
        if (!ok && f->wrong == NULL)
                f->wrong = key != NULL ? key : "";
        return ok;
}

void fact_number(struct facts *f, const char *key, uint64_t *value, uint64_t max)
{
        const msgpack_object *o = begin(f, key, MSGPACK_OBJECT_POSITIVE_INTEGER);
        if (f->w != NULL)
                writer_u64(f->w, *value);
        else if (check(f, key, o != NULL && (max == 0 || o->via.u64 <= max)))
                *value = o->via.u64;
}

void fact_number32(struct facts *f, const char *key, uint32_t *value, uint64_t max)
{
        uint64_t number = *value;
        fact_number(f, key, &number, max);
        *value = (uint32_t)number;
}

void fact_bool(struct facts *f, const char *key, bool *value)
{
        const msgpack_object *o = begin(f, key, MSGPACK_OBJECT_BOOLEAN);
        if (f->w != NULL)
                writer_bool(f->w, *value);
        else if (check(f, key, o != NULL))
                *value = o->via.boolean;
}

void fact_text(struct facts *f, const char *key, char **value, size_t min, size_t max)
{
        const msgpack_object *o = begin(f, key, MSGPACK_OBJECT_STR);
        if (f->w != NULL) {
                writer_str(f->w, *value != NULL ? *value : "");
                return;
        }
        size_t size = o != NULL ? o->via.str.size : 0;
        if (check(f, key, o != NULL && size >= min && (max == 0 || size <= max)) && size > 0 &&
            check(f, key, memchr(o->via.str.ptr, '\0', size) == NULL))
                check(f, facts_no_memory, (*value = strndup(o->via.str.ptr, size)) != NULL);
}

void fact_bytes(struct facts *f, const char *key, void *value, size_t size)
{
        const msgpack_object *o = begin(f, key, MSGPACK_OBJECT_BIN);
        if (f->w != NULL)
                writer_bin(f->w, value, size);
        else if (check(f, key, o != NULL && o->via.bin.size == size))
                memcpy(value, o->via.bin.ptr, size);
}

bool fact_exists(const struct facts *f, const char *key)
{
        return f->w != NULL || object_get(f->from, key) != NULL;
}

size_t fact_list(struct facts *f, const char *key, size_t n, size_t min, size_t max,
                 void (*element)(struct facts *element, void *list, size_t i), void *list)
{
        const msgpack_object *o = begin(f, key, MSGPACK_OBJECT_ARRAY);
        if (f->w != NULL)
                writer_array(f->w, n);
        else if (check(f, key, o != NULL && o->via.array.size >= min && o->via.array.size <= max))
                n = o->via.array.size;
        else
                return 0;
        for (size_t i = 0; i < n && f->wrong == NULL; i++) {
                struct facts one = {.w = f->w, .from = o != NULL ? &o->via.array.ptr[i] : NULL};
                element(&one, list, i);
                if (one.wrong != NULL)
                        f->wrong = one.wrong[0] != '\0' ? one.wrong : key;
        }
        return f->wrong == NULL ? n : 0;
}

static void group_facts(struct facts *f, void *list, size_t i)
{
        struct caller *caller = list;
        fact_number32(f, NULL, &caller->groups[i], FACT_ID_MAX);
}

void fact_caller(struct facts *f, struct caller *caller)
{
        fact_number32(f, "uid", &caller->uid, FACT_ID_MAX);
        fact_number32(f, "gid", &caller->gid, FACT_ID_MAX);
        caller->n_groups = fact_list(f, "groups", caller->n_groups, 0, CALLER_GROUPS, group_facts, caller);
}

/* ---- whole files ---- */

struct record_foot record_foot(const void *first, size_t first_size, const void *map, size_t map_size,
                               const char magic[RECORD_MAGIC])
{
        struct record_foot foot = {.version = VERSION, .first_size = first_size, .map_size = map_size};
        struct hash hash;
        hash_init(&hash);
        memcpy(foot.magic, magic, sizeof(foot.magic));
        hash_update(&hash, first, first_size);
        hash_update(&hash, map, map_size);
        hash_update(&hash, &foot, offsetof(struct record_foot, checksum));
        hash_final(&hash, foot.checksum);
        return foot;
}

int record_seal(msgpack_sbuffer *out, const void *first, size_t first_size, const char magic[RECORD_MAGIC])
{
        const struct record_foot foot = record_foot(first, first_size, out->data, out->size, magic);
        return msgpack_sbuffer_write(out, (const char *)&foot, sizeof(foot)) == 0 ? 0 : STREAMER_ENOMEM;
}

bool record_is(const void *file, size_t size, const char magic[RECORD_MAGIC])
{
        return size > sizeof(struct record_foot) &&
               memcmp((const char *)file + size - sizeof(struct record_foot), magic, RECORD_MAGIC) == 0;
}

const char *record_open(const void *file, size_t size, const char magic[RECORD_MAGIC], size_t *first_size,
                        struct message *map)
{
        const char *bytes = file;
        struct record_foot foot;
        unsigned char sum[DIGEST_SIZE];
        if (size <= sizeof(foot))
                return "it is too short";
        memcpy(&foot, bytes + size - sizeof(foot), sizeof(foot));
        if (memcmp(foot.magic, magic, sizeof(foot.magic)) != 0)
                return "wrong magic";
        if (foot.version != VERSION)
                return "it is of another version";
        if (foot.first_size > size || foot.map_size > size || foot.first_size + foot.map_size + sizeof(foot) != size)
                return "wrong sizes";
        hash_bytes(bytes, size - sizeof(foot.checksum), sum);
        if (memcmp(sum, foot.checksum, sizeof(sum)) != 0)
                return "wrong checksum";
        *first_size = foot.first_size;
        int r = message_decode(map, bytes + foot.first_size, foot.map_size);
        return r == 0 ? NULL : r == STREAMER_ENOMEM ? facts_no_memory : "it cannot be read";
}
