/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/state_file.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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

/* Room for one more; NULL on ENOMEM. */
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
        struct model_record model = model_record_of(g);
        model.name = (char *)(uintptr_t)name;
        model.owner = generation_find_name(g, name)->owner;
        model.device = NULL;
        model.settings.pinned = false; /* it is pinned on devices */
        return state_file_add(state, &model);
}

int state_file_add_device(struct model_record *model, const char *uuid, bool pinned)
{
        size_t i = 0;
        while (i < model->n_devices && strcmp(model->devices[i].uuid, uuid) != 0)
                i++;
        if (i == MODEL_RECORD_DEVICES)
                return STREAMER_ENOMEM;
        if (i == model->n_devices) {
                struct model_device *devices = array_grow(model->devices, i, sizeof(*devices));
                if (devices == NULL)
                        return STREAMER_ENOMEM;
                model->devices = devices;
                if ((devices[i].uuid = strdup(uuid)) == NULL)
                        return STREAMER_ENOMEM;
                devices[i].pinned = false;
                model->n_devices++;
        }
        model->devices[i].pinned |= pinned;
        model->settings.pinned |= pinned;
        return 0;
}

void state_file_deinit(struct state_file *state)
{
        for (size_t i = 0; i < state->n; i++)
                model_record_deinit(&state->models[i]);
        free(state->models);
        *state = (struct state_file){0};
}

/* Generations that serve, and pinned ones that are loading. */
static bool counts(const struct generation *g)
{
        return !source_is_test(g->source) &&
               (g->state == GENERATION_READY || (g->state == GENERATION_LOADING && g->settings.pinned));
}

/* The generation of one name on one device. */
struct named {
        const char *name;
        const struct generation *generation;
        size_t age;
};

static int by_name_and_rank(const void *a, const void *b)
{
        const struct named *x = a, *y = b;
        int r = strcmp(x->name, y->name);
        if (r == 0)
                r = ORDER(x->generation->rank, y->generation->rank);
        return r != 0 ? r : ORDER(x->age, y->age);
}

static size_t collect(const struct resident *resident, struct named *named)
{
        size_t n = 0;
        list_each_item (const struct generation, g, &resident->generations, link) {
                if (!counts(g))
                        continue;
                list_each (link, &g->names) {
                        if (named != NULL)
                                named[n] = (struct named){container_of(link, struct model_name, link)->text, g, n};
                        n++;
                }
        }
        return n;
}

/* By name; then ranks by number, replicas by age. */
static int add_named(struct state_file *state, const struct named *named, size_t n)
{
        struct model_record *model = NULL;
        for (size_t i = 0; i < n; i++) {
                const struct generation *g = named[i].generation;
                if (i == 0 || strcmp(named[i].name, named[i - 1].name) != 0)
                        model = state_file_add_generation(state, g, named[i].name);
                if (model == NULL || state_file_add_device(model, g->device->uuid, g->settings.pinned) < 0)
                        return STREAMER_ENOMEM;
        }
        return 0;
}

int state_file_of(struct state_file *state, const struct resident *resident)
{
        size_t n = collect(resident, NULL);
        cleanup_free struct named *named = calloc(n + 1, sizeof(*named));
        *state = (struct state_file){.last_number = resident->last_number};
        if (named == NULL)
                return STREAMER_ENOMEM;
        collect(resident, named);
        qsort(named, n, sizeof(*named), by_name_and_rank);
        int r = add_named(state, named, n);
        if (r < 0)
                state_file_deinit(state);
        return r;
}

/* ---- bytes ---- */

int state_file_pack(const struct state_file *state, msgpack_sbuffer *out)
{
        struct writer w;
        writer_init(&w);
        writer_map(&w, 2);
        writer_ku64(&w, "last_generation", state->last_number);
        writer_karray(&w, "models", state->n);
        for (size_t i = 0; i < state->n; i++)
                model_record_write(&w, &state->models[i], STORE_STATE);
        if (w.failed || record_seal(&w.buf, NULL, 0, MAGIC) < 0) {
                writer_deinit(&w);
                return STREAMER_ENOMEM;
        }
        *out = w.buf;
        return 0;
}

/* The key of what is wrong in it; NULL: nothing. */
static const char *unpack_map(struct state_file *state, const msgpack_object *o)
{
        const msgpack_object *list = object_get(o, "models");
        if (!object_u64(o, "last_generation", &state->last_number))
                return "last_generation";
        if (list == NULL || list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size > MODELS_MAX)
                return "models";
        for (uint32_t i = 0; i < list->via.array.size; i++) {
                struct model_record *model = next_model(state);
                const char *wrong = "models"; /* too many for the memory */
                if (model != NULL)
                        wrong = model_record_read(model, &list->via.array.ptr[i], STORE_STATE);
                if (wrong != NULL)
                        return wrong;
                state->n++;
        }
        if (state->n > 0)
                qsort(state->models, state->n, sizeof(state->models[0]), by_name);
        return NULL;
}

int state_file_unpack(struct state_file *state, const void *data, size_t size, struct error *error)
{
        struct message map;
        size_t first;
        *state = (struct state_file){0};
        const char *wrong = record_open(data, size, MAGIC, &first, &map);
        if (wrong != NULL)
                return error_set(error, STREAMER_ECORRUPT, "the state file is damaged: %s", wrong);
        wrong = unpack_map(state, &map.unpacked.data);
        message_deinit(&map);
        if (wrong == NULL)
                return 0;
        state_file_deinit(state);
        return error_set(error, STREAMER_ECORRUPT, "the state file is damaged: '%s' is not valid", wrong);
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

void state_writer_init(struct state_writer *state_writer, struct resident *resident, struct work_pool *pool,
                       const char *folder, const struct state_file *also)
{
        *state_writer =
                (struct state_writer){.resident = resident, .pool = pool, .folder = folder, .also = also, .due = true};
}

void state_writer_deinit(struct state_writer *state_writer)
{
        msgpack_sbuffer_destroy(&state_writer->written);
        msgpack_sbuffer_destroy(&state_writer->next);
        msgpack_sbuffer_destroy(&state_writer->last);
}

void state_writer_changed(struct state_writer *state_writer)
{
        state_writer->due = true;
}

bool state_writer_idle(const struct state_writer *state_writer)
{
        return !state_writer->writing;
}

static int copy_model(struct state_file *state, const struct model_record *from)
{
        struct model_record *to = state_file_add(state, from);
        int r = to != NULL ? 0 : STREAMER_ENOMEM;
        for (size_t i = 0; r == 0 && i < from->n_devices; i++)
                r = state_file_add_device(to, from->devices[i].uuid, from->devices[i].pinned);
        return r;
}

static bool is_on(const struct model_record *model, const char *uuid)
{
        for (size_t i = 0; i < model->n_devices; i++)
                if (strcmp(model->devices[i].uuid, uuid) == 0)
                        return true;
        return false;
}

/* Replicas that are to be restored beside resident ones; ranks are resident all or none. */
static int add_replicas(struct model_record *to, const struct model_record *from)
{
        int r = 0;
        if (to->ranks || from->ranks || strcmp(to->source, from->source) != 0)
                return 0;
        for (size_t i = 0; r == 0 && i < from->n_devices; i++)
                if (from->devices[i].pinned && !is_on(to, from->devices[i].uuid))
                        r = state_file_add_device(to, from->devices[i].uuid, true);
        return r;
}

/* Appended to the resident ones; only those are sorted then. */
static int add_wanted(struct state_file *state, const struct state_file *also)
{
        size_t n = state->n;
        int r = 0;
        for (size_t i = 0; r == 0 && i < also->n; i++) {
                const struct state_file resident = {.models = state->models, .n = n};
                const struct model_record *model = &also->models[i];
                struct model_record *there = state_file_find(&resident, model->name);
                if (model->settings.pinned && there != NULL)
                        r = add_replicas(there, model);
                else if (model->settings.pinned)
                        r = copy_model(state, model);
        }
        return r;
}

static int pack(const struct state_writer *state_writer, msgpack_sbuffer *out)
{
        struct state_file state;
        int r = state_file_of(&state, state_writer->resident);
        if (r == 0 && state_writer->also != NULL)
                r = add_wanted(&state, state_writer->also);
        if (r == 0)
                r = state_file_pack(&state, out);
        state_file_deinit(&state);
        return r;
}

static void save_run(struct work *work)
{
        struct state_writer *state_writer = container_of(work, struct state_writer, work);
        state_file_save(state_writer->folder, state_writer->next.data, state_writer->next.size, &state_writer->error);
}

static void save_done(struct work *work);

/* Takes the bytes over. */
static void save(struct state_writer *state_writer, const msgpack_sbuffer *bytes)
{
        state_writer->next = *bytes;
        state_writer->error = (struct error){0};
        state_writer->writing = true;
        work_submit(state_writer->pool, LANE_STATE, &state_writer->work, save_run, save_done);
}

static void save_done(struct work *work)
{
        struct state_writer *state_writer = container_of(work, struct state_writer, work);
        bool failed = state_writer->error.code != 0;
        state_writer->writing = false;
        if (failed && !state_writer->told)
                log_error("%s: what is resident will not be remembered", state_writer->error.text);
        state_writer->told = failed;
        state_writer->due |= failed; /* the disk may be full for now */
        msgpack_sbuffer_destroy(&state_writer->written);
        if (failed) { /* the file's content is not known */
                msgpack_sbuffer_destroy(&state_writer->next);
                msgpack_sbuffer_init(&state_writer->written);
        } else {
                state_writer->written = state_writer->next;
        }
        msgpack_sbuffer_init(&state_writer->next);
        if (state_writer->last.size > 0) {
                msgpack_sbuffer last = state_writer->last;
                msgpack_sbuffer_init(&state_writer->last);
                save(state_writer, &last);
        }
}

void state_writer_tick(struct state_writer *state_writer)
{
        msgpack_sbuffer now;
        if (state_writer->folder == NULL || !state_writer->due || state_writer->writing || state_writer->frozen)
                return;
        if (pack(state_writer, &now) < 0)
                return; /* tried again at the next tick */
        state_writer->due = false;
        if (now.size == state_writer->written.size && memcmp(now.data, state_writer->written.data, now.size) == 0) {
                msgpack_sbuffer_destroy(&now);
                return;
        }
        save(state_writer, &now);
}

void state_writer_freeze(struct state_writer *state_writer)
{
        if (state_writer->writing && state_writer->due && pack(state_writer, &state_writer->last) < 0)
                msgpack_sbuffer_init(&state_writer->last);
        state_writer_tick(state_writer);
        state_writer->frozen = true;
}
