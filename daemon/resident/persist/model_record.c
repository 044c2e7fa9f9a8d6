/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/model_record.h"

#include "daemon/base/util.h"

#include <string.h>

#define VERSION 1u

/* ---- the table ---- */

enum fact_type {
        FACT_NUMBER, /* of 4 or 8 bytes */
        FACT_BOOL,
        FACT_TEXT,  /* malloc'd; where it may be empty, empty is NULL */
        FACT_BYTES, /* of a fixed size */
        FACT_ARRAY, /* elements in place, their number beside it */
        FACT_LIST,  /* malloc'd elements */
};

struct fact {
        const char *key; /* "": the element is this fact alone, and no map */
        enum fact_type type;
        unsigned stores;
        size_t offset, size;   /* in its struct */
        size_t generation;     /* where a generation has the same; 0: it does not */
        uint64_t min, max;     /* a number, bytes of a text, elements; max 0: any */
        const struct fact *of; /* of each element */
        size_t element, count; /* size of an element; where their number is, a size_t */
};

#define SIZE(type, member) sizeof(((struct type *)0)->member)
#define AT(type, member) .offset = offsetof(struct type, member), .size = SIZE(type, member)
#define OWN(member) AT(model_record, member)
/* Divides by zero where the sizes differ. */
#define SHARED(member)                                                                                                 \
        OWN(member), .generation = offsetof(struct generation, member) /                                               \
                                   (SIZE(model_record, member) == SIZE(generation, member))

#define COMMIT STORE_COMMIT
#define STATE STORE_STATE
#define BOTH (STORE_COMMIT | STORE_STATE)

/* (uid_t)-1 is no user: setresuid() and the like would change nothing. */
#define ID_MAX (UINT32_MAX - 1)
#define DEVICE_MAX (sizeof(((struct device *)0)->uuid) - 1)

/* clang-format off */
static const struct fact group_facts[] = {
        {"", FACT_NUMBER, BOTH, .size = sizeof(gid_t), .max = ID_MAX},
        {.key = NULL}};

static const struct fact segment_facts[] = {
        {"size",        FACT_NUMBER, COMMIT, AT(model_segment, size), .min = 1},
        {"small_bytes", FACT_NUMBER, COMMIT, AT(model_segment, small_bytes)},
        {"pages",       FACT_NUMBER, COMMIT, AT(model_segment, pages), .max = PAGES_DEVICE},
        {.key = NULL}};

static const struct fact device_facts[] = {
        {"uuid",   FACT_TEXT, STATE, AT(model_device, uuid), .min = 1, .max = DEVICE_MAX},
        {"pinned", FACT_BOOL, STATE, AT(model_device, pinned)},
        {.key = NULL}};

#define LIST(member, number, facts) \
        OWN(member), .of = (facts), .element = sizeof(((struct model_record *)0)->member[0]), \
        .count = offsetof(struct model_record, number)

static const struct fact model_facts[] = {
        {"name",             FACT_TEXT,   BOTH,    OWN(name), .min = 1, .max = PROTO_NAME_MAX},
        {"source",           FACT_TEXT,   BOTH,    SHARED(source), .min = 1},
        {"generation",       FACT_NUMBER, BOTH,    SHARED(number)},
        {"verified",         FACT_BOOL,   BOTH,    SHARED(verified)},
        {"uid",              FACT_NUMBER, BOTH,    OWN(caller.uid), .max = ID_MAX},
        {"gid",              FACT_NUMBER, BOTH,    OWN(caller.gid), .max = ID_MAX},
        {"groups",           FACT_ARRAY,  BOTH,    LIST(caller.groups, caller.n_groups, group_facts), .max = CALLER_GROUPS},
        {"pattern",          FACT_TEXT,   BOTH,    SHARED(pattern)},
        {"keep_alive_ns",    FACT_NUMBER, STATE,   OWN(settings.keep_alive_ns)},
        {"drain_timeout_ns", FACT_NUMBER, STATE,   OWN(settings.drain_timeout_ns)},
        {"priority",         FACT_NUMBER, STATE,   OWN(settings.priority), .max = PROTO_PRIORITY_MAX},
        {"pinned",           FACT_BOOL,   STATE,   OWN(settings.pinned)},
        {"id",               FACT_NUMBER, COMMIT,  OWN(id)},
        {"device",           FACT_TEXT,   COMMIT,  OWN(device), .min = 1, .max = DEVICE_MAX},
        {"identity",         FACT_BYTES,  COMMIT,  SHARED(identity)},
        {"has_identity",     FACT_BOOL,   COMMIT,  SHARED(has_identity)},
        {"digest",           FACT_BYTES,  COMMIT,  SHARED(digest)},
        {"bytes",            FACT_NUMBER, COMMIT,  SHARED(data_bytes)},
        {"tensors",          FACT_NUMBER, COMMIT,  SHARED(n_tensors)},
        {"load_ns",          FACT_NUMBER, COMMIT,  SHARED(load_ns)},
        {"charged",          FACT_NUMBER, COMMIT,  OWN(charged)},
        {"segments",         FACT_LIST,   COMMIT,  LIST(segments, n_segments, segment_facts), .max = GENERATION_SEGMENTS},
        {"owner",            FACT_NUMBER, STATE,   OWN(owner), .max = ID_MAX},
        {"ranks",            FACT_BOOL,   STATE,   OWN(ranks)},
        {"devices",          FACT_LIST,   STATE,   LIST(devices, n_devices, device_facts), .min = 1, .max = MODEL_RECORD_DEVICES},
        {.key = NULL}};
/* clang-format on */

/* Of the list `f` in the struct at `base`. */
static size_t *count_of(const struct fact *f, const void *base)
{
        return (size_t *)((uintptr_t)base + f->count);
}

static unsigned char *element_of(const struct fact *f, const void *base, size_t i)
{
        unsigned char *at = (unsigned char *)(uintptr_t)base + f->offset;
        return (f->type == FACT_LIST ? *(unsigned char **)at : at) + i * f->element;
}

static bool in_range(const struct fact *f, uint64_t number)
{
        return number >= f->min && (f->max == 0 || number <= f->max);
}

/* ---- memory ---- */

static void free_facts(const struct fact *f, void *base)
{
        for (; f->key != NULL; f++) {
                for (size_t i = 0; f->type == FACT_LIST && i < *count_of(f, base); i++)
                        free_facts(f->of, element_of(f, base, i));
                if (f->type == FACT_LIST || f->type == FACT_TEXT)
                        free(*(void **)((unsigned char *)base + f->offset));
        }
}

void model_record_deinit(struct model_record *record)
{
        free_facts(model_facts, record);
        *record = (struct model_record){.name = NULL};
}

int model_record_copy(struct model_record *to, const struct model_record *from)
{
        bool ok = true;
        *to = *from;
        to->segments = NULL;
        to->devices = NULL;
        to->n_segments = to->n_devices = 0;
        for (const struct fact *f = model_facts; f->key != NULL; f++) {
                char **text = (char **)((unsigned char *)to + f->offset);
                if (f->type == FACT_TEXT && *text != NULL)
                        ok = (*text = strdup(*text)) != NULL && ok;
        }
        if (!ok)
                model_record_deinit(to);
        return ok ? 0 : STREAMER_ENOMEM;
}

bool model_record_equal(const struct model_record *a, const struct model_record *b)
{
        bool equal = a->n_devices == b->n_devices;
        for (const struct fact *f = model_facts; f->key != NULL && equal; f++) {
                const unsigned char *x = (const unsigned char *)a + f->offset,
                                    *y = (const unsigned char *)b + f->offset;
                if (f->type == FACT_TEXT)
                        equal = same_text(*(char *const *)x, *(char *const *)y);
                else if (f->type != FACT_LIST)
                        equal = memcmp(x, y, f->size) == 0;
        }
        for (size_t i = 0; equal && i < a->n_devices; i++)
                equal = strcmp(a->devices[i].uuid, b->devices[i].uuid) == 0 &&
                        a->devices[i].pinned == b->devices[i].pinned;
        return equal;
}

/* ---- generations ---- */

struct model_record model_record_of(const struct generation *g)
{
        struct model_record record = {.name = (char *)(uintptr_t)generation_name(g),
                                      .caller = g->caller,
                                      .settings = g->settings,
                                      .charged = g->charged,
                                      .ranks = g->n_ranks > 1};
        for (const struct fact *f = model_facts; f->key != NULL; f++)
                if (f->generation != 0)
                        memcpy((unsigned char *)&record + f->offset, (const unsigned char *)g + f->generation, f->size);
        return record;
}

void model_record_move(struct model_record *record, struct generation *g)
{
        g->caller = record->caller;
        for (const struct fact *f = model_facts; f->key != NULL; f++) {
                unsigned char *from = (unsigned char *)record + f->offset, *to = (unsigned char *)g + f->generation;
                if (f->generation == 0)
                        continue;
                if (f->type == FACT_TEXT)
                        free(*(char **)to);
                memcpy(to, from, f->size);
                if (f->type == FACT_TEXT)
                        *(char **)from = NULL;
        }
}

/* ---- writing ---- */

static void write_facts(struct writer *w, const struct fact *facts, const void *base, enum store store)
{
        bool is_map = facts->key[0] != '\0';
        size_t n = 0;
        for (const struct fact *f = facts; f->key != NULL; f++)
                n += (f->stores & store) != 0;
        if (is_map)
                writer_map(w, n);
        for (const struct fact *f = facts; f->key != NULL; f++) {
                const unsigned char *at = (const unsigned char *)base + f->offset;
                if (!(f->stores & store))
                        continue;
                if (is_map)
                        writer_key(w, f->key);
                switch (f->type) {
                case FACT_NUMBER:
                        writer_u64(w, f->size == sizeof(uint64_t) ? *(const uint64_t *)at : *(const uint32_t *)at);
                        break;
                case FACT_BOOL:
                        writer_bool(w, *(const bool *)at);
                        break;
                case FACT_TEXT:
                        writer_str(w, *(char *const *)at != NULL ? *(char *const *)at : "");
                        break;
                case FACT_BYTES:
                        writer_bin(w, at, f->size);
                        break;
                case FACT_ARRAY:
                case FACT_LIST:
                        writer_array(w, *count_of(f, base));
                        for (size_t i = 0; i < *count_of(f, base); i++)
                                write_facts(w, f->of, element_of(f, base, i), store);
                        break;
                }
        }
}

void model_record_write(struct writer *w, const struct model_record *record, enum store store)
{
        write_facts(w, model_facts, record, store);
}

/* ---- reading ---- */

static const char *read_facts(const struct fact *f, void *base, enum store store, const msgpack_object *o);

static bool read_text(const struct fact *f, char **at, const msgpack_object *o)
{
        if (o->type != MSGPACK_OBJECT_STR || !in_range(f, o->via.str.size) ||
            memchr(o->via.str.ptr, '\0', o->via.str.size) != NULL)
                return false;
        if (o->via.str.size > 0)
                *at = strndup(o->via.str.ptr, o->via.str.size);
        return *at != NULL || o->via.str.size == 0;
}

static bool read_elements(const struct fact *f, unsigned char *base, enum store store, const msgpack_object *o)
{
        if (o->type != MSGPACK_OBJECT_ARRAY || !in_range(f, o->via.array.size))
                return false;
        void **list = (void **)(base + f->offset);
        if (f->type == FACT_LIST && (*list = calloc(o->via.array.size + 1, f->element)) == NULL)
                return false;
        *count_of(f, base) = o->via.array.size;
        for (uint32_t i = 0; i < o->via.array.size; i++)
                if (read_facts(f->of, element_of(f, base, i), store, &o->via.array.ptr[i]) != NULL)
                        return false;
        return true;
}

static bool read_fact(const struct fact *f, unsigned char *base, enum store store, const msgpack_object *o)
{
        void *at = base + f->offset;
        if (o == NULL)
                return false;
        switch (f->type) {
        case FACT_NUMBER:
                if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || !in_range(f, o->via.u64))
                        return false;
                if (f->size == sizeof(uint64_t))
                        *(uint64_t *)at = o->via.u64;
                else
                        *(uint32_t *)at = (uint32_t)o->via.u64;
                return true;
        case FACT_BOOL:
                *(bool *)at = o->type == MSGPACK_OBJECT_BOOLEAN && o->via.boolean;
                return o->type == MSGPACK_OBJECT_BOOLEAN;
        case FACT_TEXT:
                return read_text(f, at, o);
        case FACT_BYTES:
                if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size != f->size)
                        return false;
                memcpy(at, o->via.bin.ptr, f->size);
                return true;
        case FACT_ARRAY:
        case FACT_LIST:
                return read_elements(f, base, store, o);
        }
        return false;
}

static const char *read_facts(const struct fact *f, void *base, enum store store, const msgpack_object *o)
{
        for (; f->key != NULL; f++)
                if ((f->stores & store) && !read_fact(f, base, store, f->key[0] == '\0' ? o : object_get(o, f->key)))
                        return f->key;
        return NULL;
}

const char *model_record_read(struct model_record *record, const msgpack_object *map, enum store store)
{
        *record = (struct model_record){.name = NULL};
        const char *wrong = read_facts(model_facts, record, store, map);
        if (wrong != NULL)
                model_record_deinit(record);
        return wrong;
}

/* ---- whole files ---- */

struct foot {
        char magic[RECORD_MAGIC];
        uint32_t version, reserved;
        uint64_t first_size, map_size;
        unsigned char checksum[DIGEST_SIZE];
};

int record_seal(msgpack_sbuffer *out, const void *first, size_t first_size, const char magic[RECORD_MAGIC])
{
        struct foot foot = {.version = VERSION, .first_size = first_size, .map_size = out->size};
        struct hash *hash = hash_new();
        if (hash == NULL)
                return STREAMER_ENOMEM;
        memcpy(foot.magic, magic, sizeof(foot.magic));
        hash_update(hash, first, first_size);
        hash_update(hash, out->data, out->size);
        hash_update(hash, &foot, offsetof(struct foot, checksum));
        hash_final(hash, foot.checksum);
        hash_free(hash);
        return msgpack_sbuffer_write(out, (const char *)&foot, sizeof(foot)) == 0 ? 0 : STREAMER_ENOMEM;
}

const char *record_open(const void *file, size_t size, const char magic[RECORD_MAGIC], size_t *first_size,
                        struct message *map)
{
        const char *bytes = file;
        struct foot foot;
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
        return message_decode(map, bytes + foot.first_size, foot.map_size) == 0 ? NULL : "it cannot be read";
}
