/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/snapshot.h"

#include "daemon/base/util.h"

#include <string.h>

#define ITEMS_MAX 1048576u /* more than SNAPSHOT_MAX has room for */
#define COUNTERS_SIZE (SNAPSHOT_COUNTERS * sizeof(uint64_t))

_Static_assert(sizeof(struct lease_record) == 64, "rows are part of the format");

/* ---- models ---- */

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct model_record *)a)->name, ((const struct model_record *)b)->name);
}

struct model_record *snapshot_find(const struct snapshot *snapshot, const char *name)
{
        const struct model_record key = {.name = (char *)(uintptr_t)name};
        return snapshot->n == 0 ? NULL : bsearch(&key, snapshot->models, snapshot->n, sizeof(key), by_name);
}

bool model_record_equal(const struct model_record *a, const struct model_record *b)
{
        const struct model_settings *x = &a->settings, *y = &b->settings;
        bool equal = same_text(a->name, b->name) && same_text(a->source, b->source) &&
                     same_text(a->pattern, b->pattern) && a->verified == b->verified && a->ranks == b->ranks &&
                     x->keep_alive_ns == y->keep_alive_ns && x->drain_timeout_ns == y->drain_timeout_ns &&
                     x->priority == y->priority && x->pinned == y->pinned && a->n_devices == b->n_devices;
        for (size_t i = 0; equal && i < a->n_devices; i++)
                equal = strcmp(a->devices[i].uuid, b->devices[i].uuid) == 0;
        return equal;
}

void model_record_deinit(struct model_record *record)
{
        for (size_t i = 0; i < record->n_devices; i++)
                free(record->devices[i].uuid);
        free(record->devices);
        free(record->pattern);
        free(record->source);
        free(record->name);
        *record = (struct model_record){.name = NULL};
}

/* Its index, or n_devices. */
static size_t find_device(const struct model_record *model, const char *uuid)
{
        size_t i = 0;
        while (i < model->n_devices && strcmp(model->devices[i].uuid, uuid) != 0)
                i++;
        return i;
}

bool model_record_has_device(const struct model_record *model, const char *uuid)
{
        return find_device(model, uuid) < model->n_devices;
}

int model_record_add_device(struct model_record *model, const char *uuid, bool pinned)
{
        size_t i = find_device(model, uuid);
        if (i == MODEL_RECORD_DEVICES)
                return STREAMER_ENOMEM;
        if (i == model->n_devices) {
                struct model_device *devices = array_grow(model->devices, i, sizeof(*devices));
                if (devices == NULL)
                        return STREAMER_ENOMEM;
                model->devices = devices;
                devices[i] = (struct model_device){.uuid = strdup(uuid)};
                if (devices[i].uuid == NULL)
                        return STREAMER_ENOMEM;
                model->n_devices++;
        }
        model->devices[i].pinned |= pinned;
        model->settings.pinned |= pinned;
        return 0;
}

int model_record_copy(struct model_record *to, const struct model_record *from)
{
        *to = *from;
        to->name = strdup(from->name);
        to->source = strdup(from->source);
        to->pattern = from->pattern != NULL ? strdup(from->pattern) : NULL;
        to->devices = NULL;
        to->n_devices = 0;
        bool copied = to->name != NULL && to->source != NULL && (to->pattern != NULL || from->pattern == NULL);
        for (size_t i = 0; copied && i < from->n_devices; i++)
                copied = model_record_add_device(to, from->devices[i].uuid, from->devices[i].pinned) == 0;
        if (copied)
                return 0;
        model_record_deinit(to);
        return STREAMER_ENOMEM;
}

struct model_record *snapshot_add(struct snapshot *snapshot, const struct model_record *from)
{
        struct model_record *models = array_grow(snapshot->models, snapshot->n, sizeof(*models));
        if (models == NULL)
                return NULL;
        snapshot->models = models;
        return model_record_copy(&models[snapshot->n], from) == 0 ? &models[snapshot->n++] : NULL;
}

struct model_record *snapshot_add_name(struct snapshot *snapshot, const struct model_name *name)
{
        const struct generation *g = name->generation;
        struct model_record model = {.name = (char *)(uintptr_t)name->text,
                                     .source = g->source,
                                     .number = g->number,
                                     .verified = g->verified,
                                     .caller = g->caller,
                                     .pattern = g->pattern,
                                     .settings = g->settings,
                                     .owner = name->owner,
                                     .ranks = g->n_ranks > 1};
        model.settings.pinned = false; /* it is pinned on devices */
        return snapshot_add(snapshot, &model);
}

void snapshot_deinit(struct snapshot *snapshot)
{
        for (size_t i = 0; i < snapshot->n; i++)
                model_record_deinit(&snapshot->models[i]);
        for (size_t i = 0; i < snapshot->n_names; i++)
                free(snapshot->names[i].text);
        free(snapshot->models);
        free(snapshot->names);
        free(snapshot->leases);
        *snapshot = (struct snapshot){0};
}

/* Generations that serve, and pinned ones that are loading, but for what nothing could load again: a source whose query
 * may be a signature is not written to disk. */
static bool is_persisted(const struct generation *g)
{
        bool counts = g->state == GENERATION_READY || (g->state == GENERATION_LOADING && g->settings.pinned);
        return counts && !source_is_test(g->source) && !source_has_query(g->source) && g->published == NULL;
}

/* The model of this name, with the devices of all its generations, if this is the first of them. */
static int add_first(struct snapshot *snapshot, const struct model_name *name)
{
        struct model_record *model = NULL;
        list_each_item (const struct model_name, n, resident_bucket(name->generation->resident, name->text), by_name) {
                const struct generation *g = n->generation;
                if (!is_persisted(g) || strcmp(n->text, name->text) != 0)
                        continue;
                if (model == NULL && n != name)
                        return 0;
                model = model ?: snapshot_add_name(snapshot, n);
                if (model == NULL || model_record_add_device(model, g->device->uuid, g->settings.pinned) < 0)
                        return STREAMER_ENOMEM;
        }
        return 0;
}

static void sort(struct snapshot *snapshot)
{
        if (snapshot->n > 0)
                qsort(snapshot->models, snapshot->n, sizeof(snapshot->models[0]), by_name);
}

int snapshot_of(struct snapshot *snapshot, const struct resident *resident)
{
        int r = 0;
        *snapshot = (struct snapshot){.n = 0};
        list_each_item (const struct generation, g, &resident->generations, link)
                list_each_item (const struct model_name, name, &g->names, link)
                        if (r == 0 && is_persisted(g))
                                r = add_first(snapshot, name);
        sort(snapshot);
        return r;
}

/* ---- bytes ---- */

static void device_facts(struct facts *f, void *list, size_t i)
{
        struct model_record *m = list;
        struct model_device read = {.uuid = NULL}, *device = f->w != NULL ? &m->devices[i] : &read;
        if (f->w != NULL)
                writer_map(f->w, 2);
        fact_text(f, "uuid", &device->uuid, 1, FACT_DEVICE_MAX);
        fact_bool(f, "pinned", &device->pinned);
        if (f->w == NULL && f->wrong == NULL && model_record_add_device(m, read.uuid, read.pinned) < 0)
                f->wrong = "devices"; /* too many for the memory */
        free(read.uuid);
}

#define MODEL_FACTS 15
#define NAME_FACTS 8

/* Of a name there and of a model. */
static void settings_facts(struct facts *f, struct model_settings *settings, uint32_t *owner)
{
        fact_number(f, "keep_alive_ns", &settings->keep_alive_ns, 0);
        fact_number(f, "drain_timeout_ns", &settings->drain_timeout_ns, 0);
        fact_number32(f, "priority", &settings->priority, PROTO_PRIORITY_MAX);
        fact_bool(f, "pinned", &settings->pinned);
        fact_number32(f, "owner", owner, FACT_ID_MAX);
}

/* Begins to write the next of these items, or appends one to read; NULL without memory. */
static void *begin_item(struct facts *f, void *items, size_t *n, size_t size, size_t n_facts)
{
        if (f->w != NULL) {
                writer_map(f->w, n_facts);
                return items;
        }
        char *grown = array_grow(items, *n, size);
        if (grown == NULL)
                f->wrong = "memory";
        else
                memset(grown + (*n)++ * size, 0, size);
        return grown;
}

static void model_facts(struct facts *f, void *list, size_t i)
{
        struct snapshot *snapshot = list;
        struct model_record *m = begin_item(f, snapshot->models, &snapshot->n, sizeof(*m), MODEL_FACTS);
        if (m == NULL)
                return;
        snapshot->models = m;
        m += i;
        fact_text(f, "name", &m->name, 1, PROTO_NAME_MAX);
        fact_text(f, "source", &m->source, 1, 0);
        fact_number(f, "generation", &m->number, 0);
        fact_bool(f, "verified", &m->verified);
        fact_caller(f, &m->caller);
        fact_text(f, "pattern", &m->pattern, 0, 0);
        settings_facts(f, &m->settings, &m->owner);
        fact_bool(f, "ranks", &m->ranks);
        fact_list(f, "devices", m->n_devices, 1, MODEL_RECORD_DEVICES, device_facts, m);
}

static void name_facts(struct facts *f, void *list, size_t i)
{
        struct snapshot *snapshot = list;
        struct name_record *name = begin_item(f, snapshot->names, &snapshot->n_names, sizeof(*name), NAME_FACTS);
        if (name == NULL)
                return;
        snapshot->names = name;
        name += i;
        fact_number(f, "model", &name->model, 0);
        fact_text(f, "name", &name->text, 1, PROTO_NAME_MAX);
        settings_facts(f, &name->settings, &name->owner);
        fact_number(f, "charged", &name->charged, (uint64_t)FACT_ID_MAX + 1);
}

static void map_facts(struct facts *f, struct snapshot *snapshot, bool models, bool names)
{
        if (models)
                fact_list(f, "models", snapshot->n, 0, ITEMS_MAX, model_facts, snapshot);
        if (names) {
                fact_number(f, "last_generation", &snapshot->last_number, 0);
                fact_list(f, "names", snapshot->n_names, 0, ITEMS_MAX, name_facts, snapshot);
        }
}

int snapshot_pack(const struct snapshot *snapshot, enum snapshot_part part, msgpack_sbuffer *out)
{
        struct writer w;
        bool models = part == SNAPSHOT_MODELS;
        writer_init(&w);
        if (models)
                writer_map(&w, 3);
        map_facts(&(struct facts){.w = &w}, (struct snapshot *)(uintptr_t)snapshot, models, !models);
        if (w.failed) {
                writer_deinit(&w);
                return STREAMER_ENOMEM;
        }
        msgpack_sbuffer_destroy(out);
        *out = w.buf;
        return 0;
}

int snapshot_begin(msgpack_sbuffer *out, const uint64_t counters[SNAPSHOT_COUNTERS])
{
        out->size = 0;
        return msgpack_sbuffer_write(out, (const char *)counters, COUNTERS_SIZE) == 0 ? 0 : STREAMER_ENOMEM;
}

int snapshot_add_lease(msgpack_sbuffer *out, const struct lease_record *lease)
{
        return msgpack_sbuffer_write(out, (const char *)lease, sizeof(*lease)) == 0 ? 0 : STREAMER_ENOMEM;
}

int snapshot_end(msgpack_sbuffer *out, const msgpack_sbuffer *models, const msgpack_sbuffer *names)
{
        size_t first = out->size;
        if (msgpack_sbuffer_write(out, models->data, models->size) < 0 ||
            msgpack_sbuffer_write(out, names->data, names->size) < 0)
                return STREAMER_ENOMEM;
        const struct record_foot foot =
                record_foot(out->data, first, out->data + first, out->size - first, SNAPSHOT_MAGIC);
        return msgpack_sbuffer_write(out, (const char *)&foot, sizeof(foot)) == 0 ? 0 : STREAMER_ENOMEM;
}

/* NULL, or what is wrong with it. */
static const char *unpack_first(struct snapshot *snapshot, const char *first, size_t size)
{
        if (size < COUNTERS_SIZE || (size - COUNTERS_SIZE) % sizeof(*snapshot->leases) != 0)
                return "leases";
        size -= COUNTERS_SIZE;
        snapshot->leases = malloc(size + 1);
        if (snapshot->leases == NULL)
                return "leases"; /* too many for the memory */
        memcpy(snapshot->counters, first, COUNTERS_SIZE);
        memcpy(snapshot->leases, first + COUNTERS_SIZE, size);
        snapshot->n_leases = size / sizeof(*snapshot->leases);
        return NULL;
}

int snapshot_unpack(struct snapshot *snapshot, const void *data, size_t size, struct error *error)
{
        struct message map;
        struct facts facts = {.from = &map.unpacked.data};
        size_t first;
        *snapshot = (struct snapshot){.n = 0};
        const char *wrong = record_open(data, size, SNAPSHOT_MAGIC, &first, &map);
        if (wrong != NULL)
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: %s", wrong);
        map_facts(&facts, snapshot, true, true);
        message_deinit(&map);
        wrong = facts.wrong ?: unpack_first(snapshot, data, first);
        if (wrong == NULL) {
                sort(snapshot);
                return 0;
        }
        snapshot_deinit(snapshot);
        return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: '%s' is not valid", wrong);
}
