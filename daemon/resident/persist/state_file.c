/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/state_file.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define MAGIC "strmsta2"
#define SIZE_MAX_FILE (64 * MiB)
#define MODELS_MAX 65536u

/* ---- models ---- */

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct model_record *)a)->name, ((const struct model_record *)b)->name);
}

struct model_record *state_file_find(const struct state_file *state, const char *name)
{
        const struct model_record key = {.name = (char *)(uintptr_t)name};
        return state->n == 0 ? NULL : bsearch(&key, state->models, state->n, sizeof(key), by_name);
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

/* Space for one more; NULL on ENOMEM. */
static struct model_record *next_model(struct state_file *state)
{
        struct model_record *models = array_grow(state->models, state->n, sizeof(*models));
        if (models == NULL)
                return NULL;
        state->models = models;
        return &models[state->n];
}

struct model_record *state_file_add(struct state_file *state, const struct model_record *from)
{
        struct model_record *model = next_model(state);
        if (model == NULL || model_record_copy(model, from) < 0)
                return NULL;
        state->n++;
        return model;
}

struct model_record *state_file_add_generation(struct state_file *state, const struct generation *g, const char *name)
{
        struct model_record model = {.name = (char *)(uintptr_t)name,
                                     .source = g->source,
                                     .number = g->number,
                                     .verified = g->verified,
                                     .caller = g->caller,
                                     .pattern = g->pattern,
                                     .settings = g->settings,
                                     .owner = generation_find_name(g, name)->owner,
                                     .ranks = g->n_ranks > 1};
        model.settings.pinned = false; /* it is pinned on devices */
        return state_file_add(state, &model);
}

void state_file_deinit(struct state_file *state)
{
        for (size_t i = 0; i < state->n; i++)
                model_record_deinit(&state->models[i]);
        free(state->models);
        *state = (struct state_file){0};
}

/* Generations that serve, and pinned ones that are loading, but for what nothing could load again. */
static bool is_persisted(const struct generation *g)
{
        bool counts = g->state == GENERATION_READY || (g->state == GENERATION_LOADING && g->settings.pinned);
        return counts && !source_is_test(g->source) && g->published == NULL;
}

/* The model of this name, with the devices of all its generations, if this is the first of them. */
static int add_first(struct state_file *state, const struct model_name *name)
{
        struct model_record *model = NULL;
        list_each_item (const struct model_name, n, resident_bucket(name->generation->resident, name->text), by_name) {
                const struct generation *g = n->generation;
                if (!is_persisted(g) || strcmp(n->text, name->text) != 0)
                        continue;
                if (model == NULL && n != name)
                        return 0;
                model = model ?: state_file_add_generation(state, g, n->text);
                if (model == NULL || model_record_add_device(model, g->device->uuid, g->settings.pinned) < 0)
                        return STREAMER_ENOMEM;
        }
        return 0;
}

static void sort(struct state_file *state)
{
        if (state->n > 0)
                qsort(state->models, state->n, sizeof(state->models[0]), by_name);
}

int state_file_of(struct state_file *state, const struct resident *resident)
{
        int r = 0;
        *state = (struct state_file){.last_number = resident->last_number};
        list_each_item (const struct generation, g, &resident->generations, link)
                list_each_item (const struct model_name, name, &g->names, link)
                        if (r == 0 && is_persisted(g))
                                r = add_first(state, name);
        sort(state);
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

#define FACTS 15

static void model_facts(struct facts *f, void *list, size_t i)
{
        struct state_file *state = list;
        struct model_record *m = f->w != NULL ? &state->models[i] : next_model(state);
        if (m == NULL) {
                f->wrong = "models"; /* too many for the memory */
                return;
        }
        if (f->w != NULL) {
                writer_map(f->w, FACTS);
        } else {
                *m = (struct model_record){.name = NULL};
                state->n++;
        }
        fact_text(f, "name", &m->name, 1, PROTO_NAME_MAX);
        fact_text(f, "source", &m->source, 1, 0);
        fact_number(f, "generation", &m->number, 0);
        fact_bool(f, "verified", &m->verified);
        fact_caller(f, &m->caller);
        fact_text(f, "pattern", &m->pattern, 0, 0);
        fact_number(f, "keep_alive_ns", &m->settings.keep_alive_ns, 0);
        fact_number(f, "drain_timeout_ns", &m->settings.drain_timeout_ns, 0);
        fact_number32(f, "priority", &m->settings.priority, PROTO_PRIORITY_MAX);
        fact_bool(f, "pinned", &m->settings.pinned);
        fact_number32(f, "owner", &m->owner, FACT_ID_MAX);
        fact_bool(f, "ranks", &m->ranks);
        fact_list(f, "devices", m->n_devices, 1, MODEL_RECORD_DEVICES, device_facts, m);
}

static void state_facts(struct facts *f, struct state_file *state)
{
        fact_number(f, "last_generation", &state->last_number, 0);
        fact_list(f, "models", state->n, 0, MODELS_MAX, model_facts, state);
}

int state_file_pack(const struct state_file *state, msgpack_sbuffer *out)
{
        struct writer w;
        writer_init(&w);
        writer_map(&w, 2);
        state_facts(&(struct facts){.w = &w}, (struct state_file *)(uintptr_t)state);
        if (w.failed || record_seal(&w.buf, NULL, 0, MAGIC) < 0) {
                writer_deinit(&w);
                return STREAMER_ENOMEM;
        }
        *out = w.buf;
        return 0;
}

int state_file_unpack(struct state_file *state, const void *data, size_t size, struct error *error)
{
        struct message map;
        struct facts facts = {.from = &map.unpacked.data};
        size_t first;
        *state = (struct state_file){0};
        const char *wrong = record_open(data, size, MAGIC, &first, &map);
        if (wrong != NULL)
                return error_set(error, STREAMER_ECORRUPT, "the state file is damaged: %s", wrong);
        state_facts(&facts, state);
        message_deinit(&map);
        if (facts.wrong == NULL) {
                sort(state);
                return 0;
        }
        state_file_deinit(state);
        return error_set(error, STREAMER_ECORRUPT, "the state file is damaged: '%s' is not valid", facts.wrong);
}

/* ---- the file ---- */

static int open_folder(const char *folder, struct error *error)
{
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd >= 0 ? fd : error_errno(error, STREAMER_EFAILED, errno, "state: %s", folder);
}

int state_file_load(struct state_file *state, const char *folder, struct error *error)
{
        struct text text = {0};
        *state = (struct state_file){0};
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd = openat(dir, STATE_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT)
                return STREAMER_ENOENT;
        int r = fd < 0 ? error_errno(error, STREAMER_ECORRUPT, errno, "state: cannot be opened")
                       : text_read_fd(&text, fd, SIZE_MAX_FILE, STATE_FILE, error);
        if (r == 0)
                r = state_file_unpack(state, text.data, text.size, error);
        text_deinit(&text);
        if (r < 0) {
                renameat(dir, STATE_FILE, dir, STATE_FILE ".damaged"); /* set aside for an inspection */
                error->code = STREAMER_ECORRUPT;
        }
        return r < 0 ? STREAMER_ECORRUPT : 0;
}

int state_file_save(const char *folder, const void *data, size_t size, struct error *error)
{
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd =
                openat(dir, STATE_FILE ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || text_write_fd(fd, data, size) < 0 || fsync(fd) < 0 ||
            renameat(dir, STATE_FILE ".new", dir, STATE_FILE) < 0 || fsync(dir) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "state: cannot be written (%s)", folder);
        return 0;
}

/* ---- keeping it in step ---- */

void state_writer_init(struct state_writer *writer, struct work_pool *pool, const char *folder,
                       int (*collect)(const struct desired *, struct state_file *), const struct desired *desired)
{
        *writer = (struct state_writer){
                .pool = pool, .folder = folder, .collect = collect, .desired = desired, .due = true};
}

void state_writer_deinit(struct state_writer *writer)
{
        msgpack_sbuffer_destroy(&writer->next);
        msgpack_sbuffer_destroy(&writer->pending);
}

static int pack(const struct state_writer *writer, msgpack_sbuffer *out)
{
        struct state_file state;
        int r = writer->collect(writer->desired, &state);
        if (r == 0)
                r = state_file_pack(&state, out);
        state_file_deinit(&state);
        return r;
}

static void save_run(struct work *work)
{
        struct state_writer *writer = container_of(work, struct state_writer, work);
        state_file_save(writer->folder, writer->next.data, writer->next.size, &writer->error);
}

static void save_done(struct work *work);

static void save(struct state_writer *writer)
{
        if (writer->writing || writer->pending.size == 0)
                return;
        writer->next = writer->pending;
        msgpack_sbuffer_init(&writer->pending);
        writer->error = (struct error){0};
        writer->writing = true;
        work_submit(writer->pool, WORK_LANE_STATE, &writer->work, save_run, save_done);
}

static void save_done(struct work *work)
{
        struct state_writer *writer = container_of(work, struct state_writer, work);
        writer->writing = false;
        msgpack_sbuffer_destroy(&writer->next);
        msgpack_sbuffer_init(&writer->next);
        if (writer->error.code != 0) {
                if (writer->failure.code == 0)
                        log_error("%s: what is resident is not persisted", writer->error.text);
                memset(writer->newest, 0, sizeof(writer->newest)); /* the file's content is not known */
                writer->due = true;                                /* the disk may be full for now */
        }
        writer->failure = writer->error;
        save(writer);
}

void state_writer_tick(struct state_writer *writer)
{
        msgpack_sbuffer now;
        unsigned char digest[DIGEST_SIZE];
        if (writer->folder == NULL || !writer->due)
                return;
        if (pack(writer, &now) < 0)
                return; /* tried again at the next tick */
        writer->due = false;
        hash_bytes(now.data, now.size, digest);
        if (memcmp(digest, writer->newest, sizeof(digest)) == 0) {
                msgpack_sbuffer_destroy(&now);
                return;
        }
        memcpy(writer->newest, digest, sizeof(digest));
        msgpack_sbuffer_destroy(&writer->pending);
        writer->pending = now;
        save(writer);
}
