/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/state.h"

#include "daemon/base/fd.h"
#include "daemon/base/hash.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define MAGIC "strmsta1"
#define VERSION 1u
#define SIZE_MAX_FILE (64 * MiB)
#define MODELS_MAX 65536u

struct head {
        char magic[8];
        uint32_t version, reserved;
        uint64_t size; /* of the body */
        unsigned char checksum[DIGEST_SIZE];
};

/* ---- models ---- */

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct state_model *)a)->name, ((const struct state_model *)b)->name);
}

struct state_model *state_find(const struct state *state, const char *name)
{
        const struct state_model key = {.name = (char *)(uintptr_t)name};
        return state->n == 0 ? NULL : bsearch(&key, state->models, state->n, sizeof(key), by_name);
}

struct state_model *state_add(struct state *state, const char *name, const char *source)
{
        struct state_model *models = with_room(state->models, state->n, sizeof(*models));
        if (models == NULL)
                return NULL;
        state->models = models;
        struct state_model *model = &state->models[state->n];
        *model = (struct state_model){.name = strdup(name), .source = strdup(source)};
        if (model->name == NULL || model->source == NULL) {
                free(model->name);
                free(model->source);
                return NULL;
        }
        state->n++;
        return model;
}

int state_add_device(struct state_model *model, const char *uuid, bool pinned)
{
        size_t i = 0;
        while (i < model->n_devices && strcmp(model->devices[i], uuid) != 0)
                i++;
        if (i == STATE_DEVICES)
                return STREAMER_ENOMEM;
        if (i == model->n_devices) {
                if ((model->devices[i] = strdup(uuid)) == NULL)
                        return STREAMER_ENOMEM;
                model->pins[i] = false;
                model->n_devices++;
        }
        model->pins[i] = model->pins[i] || pinned;
        model->pinned = model->pinned || pinned;
        return 0;
}

void state_drop_device(struct state_model *model, size_t i)
{
        free(model->devices[i]);
        model->n_devices--;
        model->devices[i] = model->devices[model->n_devices];
        model->pins[i] = model->pins[model->n_devices];
        model->pinned = false;
        for (size_t k = 0; k < model->n_devices; k++)
                model->pinned = model->pinned || model->pins[k];
}

void state_deinit(struct state *state)
{
        for (size_t i = 0; i < state->n; i++) {
                struct state_model *model = &state->models[i];
                free(model->name);
                free(model->source);
                for (size_t k = 0; k < model->n_devices; k++)
                        free(model->devices[k]);
                origin_deinit(&model->origin);
        }
        free(state->models);
        *state = (struct state){0};
}

/* What serves, and what is pinned and on its way. */
static bool counts(const struct generation *g)
{
        return !g->probe && (g->state == GENERATION_READY || (g->state == GENERATION_LOADING && g->pinned));
}

/* What one name leads to, on one device. */
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
                r = (x->generation->rank > y->generation->rank) - (x->generation->rank < y->generation->rank);
        return r != 0 ? r : (x->age > y->age) - (x->age < y->age);
}

static size_t collect(const struct resident *resident, struct named *named)
{
        size_t n = 0;
        list_each (pos, &resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
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

struct state_model *state_add_generation(struct state *state, const struct generation *g, const char *name)
{
        const struct origin *o = &g->origin;
        struct state_model *model = state_add(state, name, g->source);
        if (model == NULL || origin_init(&model->origin, o->uid, o->gid, o->groups, o->n_groups, o->pattern) < 0)
                return NULL;
        model->owner = generation_find_name(g, name)->owner;
        model->number = g->number;
        model->keep_alive_ns = g->keep_alive_ns;
        model->drain_timeout_ns = g->drain_timeout_ns;
        model->priority = g->priority;
        model->verified = g->verified;
        model->ranks = g->n_ranks > 1;
        return model;
}

/* Those of one name follow each other: ranks by their number, replicas by their age. */
static int add_named(struct state *state, const struct named *named, size_t n)
{
        struct state_model *model = NULL;
        for (size_t i = 0; i < n; i++) {
                const struct generation *g = named[i].generation;
                if (i == 0 || strcmp(named[i].name, named[i - 1].name) != 0)
                        model = state_add_generation(state, g, named[i].name);
                if (model == NULL || state_add_device(model, g->device->uuid, g->pinned) < 0)
                        return STREAMER_ENOMEM;
        }
        return 0;
}

int state_of(struct state *state, const struct resident *resident)
{
        size_t n = collect(resident, NULL);
        cleanup_free struct named *named = calloc(n + 1, sizeof(*named));
        *state = (struct state){.last_number = resident->last_number};
        if (named == NULL)
                return STREAMER_ENOMEM;
        collect(resident, named);
        qsort(named, n, sizeof(*named), by_name_and_rank);
        int r = add_named(state, named, n);
        if (r < 0)
                state_deinit(state);
        return r;
}

/* ---- bytes ---- */

static void pack_model(struct writer *w, const struct state_model *m)
{
        writer_map(w, 13);
        writer_kstr(w, "name", m->name);
        writer_kstr(w, "source", m->source);
        writer_ku64(w, "generation", m->number);
        writer_ku64(w, "priority", m->priority);
        writer_ku64(w, "keep_alive_ns", m->keep_alive_ns);
        writer_ku64(w, "drain_timeout_ns", m->drain_timeout_ns);
        writer_kbool(w, "pinned", m->pinned);
        writer_kbool(w, "verified", m->verified);
        writer_kbool(w, "ranks", m->ranks);
        writer_ku64(w, "owner", m->owner);
        writer_key(w, "origin");
        origin_write(w, &m->origin);
        writer_key(w, "devices");
        writer_array(w, m->n_devices);
        for (size_t i = 0; i < m->n_devices; i++)
                writer_str(w, m->devices[i]);
        writer_key(w, "pins"); /* by device; earlier versions knew `pinned` alone, and read that */
        writer_array(w, m->n_devices);
        for (size_t i = 0; i < m->n_devices; i++)
                writer_bool(w, m->pins[i]);
}

int state_pack(const struct state *state, msgpack_sbuffer *out)
{
        struct head head = {.magic = MAGIC, .version = VERSION};
        struct writer w;
        writer_init(&w);
        w.failed = msgpack_sbuffer_write(&w.buf, (const char *)&head, sizeof(head)) != 0;
        writer_map(&w, 2);
        writer_ku64(&w, "last_generation", state->last_number);
        writer_key(&w, "models");
        writer_array(&w, state->n);
        for (size_t i = 0; i < state->n; i++)
                pack_model(&w, &state->models[i]);
        if (w.failed) {
                writer_deinit(&w);
                return STREAMER_ENOMEM;
        }
        head.size = w.buf.size - sizeof(head);
        hash_bytes(w.buf.data + sizeof(head), head.size, head.checksum);
        memcpy(w.buf.data, &head, sizeof(head));
        *out = w.buf;
        return 0;
}

static int damaged(struct error *error, const char *what)
{
        return error_set(error, STREAMER_ECORRUPT, "the state file is damaged: %s", what);
}

static char *copy_str(const msgpack_object *o, const char *key)
{
        const char *s;
        size_t len;
        return object_str(o, key, &s, &len) && len > 0 && memchr(s, '\0', len) == NULL ? strndup(s, len) : NULL;
}

/* As many as devices; or none, of an earlier version: it is pinned on all of them, or on none. */
static bool is_list_of_pins(const msgpack_object *list, uint32_t n)
{
        if (list == NULL)
                return true;
        if (list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size != n)
                return false;
        for (uint32_t i = 0; i < n; i++)
                if (list->via.array.ptr[i].type != MSGPACK_OBJECT_BOOLEAN)
                        return false;
        return true;
}

static bool unpack_devices(struct state_model *m, const msgpack_object *o)
{
        const msgpack_object *list = object_get(o, "devices"), *pins = object_get(o, "pins");
        bool all;
        if (list == NULL || list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size > STATE_DEVICES ||
            !object_bool(o, "pinned", &all) || !is_list_of_pins(pins, list->via.array.size))
                return false;
        for (uint32_t i = 0; i < list->via.array.size; i++) {
                const msgpack_object *item = &list->via.array.ptr[i];
                if (item->type != MSGPACK_OBJECT_STR)
                        return false;
                cleanup_free char *uuid = strndup(item->via.str.ptr, item->via.str.size);
                bool pinned = pins != NULL ? pins->via.array.ptr[i].via.boolean : all;
                if (uuid == NULL || state_add_device(m, uuid, pinned) < 0)
                        return false;
        }
        return m->n_devices > 0;
}

static bool unpack_model(struct state *state, const msgpack_object *o)
{
        uint64_t priority, owner;
        cleanup_free char *name = copy_str(o, "name"), *source = copy_str(o, "source");
        struct state_model *m = name != NULL && source != NULL ? state_add(state, name, source) : NULL;
        if (m == NULL || !object_u64(o, "generation", &m->number) || !object_u64(o, "priority", &priority) ||
            priority > PROTO_PRIORITY_MAX || !object_u64(o, "keep_alive_ns", &m->keep_alive_ns) ||
            !object_u64(o, "drain_timeout_ns", &m->drain_timeout_ns) || !object_bool(o, "verified", &m->verified) ||
            !object_bool(o, "ranks", &m->ranks))
                return false;
        m->priority = (unsigned)priority;
        if (origin_read(&m->origin, object_get(o, "origin")) < 0)
                return false;
        m->owner = object_u64(o, "owner", &owner) && owner < UINT32_MAX ? (uid_t)owner : m->origin.uid;
        return unpack_devices(m, o);
}

static int unpack_body(struct state *state, const void *data, size_t size, struct error *error)
{
        struct message message;
        if (message_decode(&message, data, size) != 0)
                return damaged(error, "it cannot be read");
        const msgpack_object *o = &message.unpacked.data, *list = object_get(o, "models");
        bool ok = object_u64(o, "last_generation", &state->last_number) && list != NULL &&
                  list->type == MSGPACK_OBJECT_ARRAY && list->via.array.size <= MODELS_MAX;
        for (uint32_t i = 0; ok && i < list->via.array.size; i++)
                ok = unpack_model(state, &list->via.array.ptr[i]);
        message_deinit(&message);
        if (state->n > 0)
                qsort(state->models, state->n, sizeof(state->models[0]), by_name);
        return ok ? 0 : damaged(error, "something in it is missing or out of range");
}

int state_unpack(struct state *state, const void *data, size_t size, struct error *error)
{
        struct head head;
        unsigned char sum[DIGEST_SIZE];
        *state = (struct state){0};
        if (size < sizeof(head))
                return damaged(error, "it is too short");
        memcpy(&head, data, sizeof(head));
        if (memcmp(head.magic, MAGIC, sizeof(head.magic)) != 0)
                return damaged(error, "it is something else");
        if (head.version != VERSION)
                return damaged(error, "it is of another version");
        if (head.size != size - sizeof(head))
                return damaged(error, "its end is missing, or there is more behind it");
        hash_bytes((const char *)data + sizeof(head), head.size, sum);
        if (memcmp(sum, head.checksum, sizeof(sum)) != 0)
                return damaged(error, "wrong checksum");
        int r = unpack_body(state, (const char *)data + sizeof(head), head.size, error);
        if (r < 0)
                state_deinit(state);
        return r;
}

/* ---- the file ---- */

static int open_folder(const char *folder, struct error *error)
{
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd >= 0 ? fd : error_errno(error, STREAMER_EFAILED, errno, "state: %s", folder);
}

/* A later look at it may tell more than a start that fails. */
static void set_aside(int folder)
{
        renameat(folder, STATE_FILE, folder, STATE_FILE ".damaged");
}

int state_load(struct state *state, const char *folder, struct error *error)
{
        struct text text = {0};
        *state = (struct state){0};
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd = openat(dir, STATE_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT)
                return STREAMER_ENOENT;
        int r = fd < 0 ? error_errno(error, STREAMER_ECORRUPT, errno, "state: cannot be opened")
                       : text_read_fd(&text, fd, SIZE_MAX_FILE, STATE_FILE, error);
        if (r == 0)
                r = state_unpack(state, text.data, text.size, error);
        text_deinit(&text);
        if (r < 0) {
                set_aside(dir);
                error->code = STREAMER_ECORRUPT;
        }
        return r < 0 ? STREAMER_ECORRUPT : 0;
}

static int write_all(int fd, const char *p, size_t size)
{
        while (size > 0) {
                ssize_t n = write(fd, p, size);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -1;
                p += n;
                size -= (size_t)n;
        }
        return fsync(fd);
}

int state_save(const char *folder, const void *data, size_t size, struct error *error)
{
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd =
                openat(dir, STATE_FILE ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || write_all(fd, data, size) < 0 || renameat(dir, STATE_FILE ".new", dir, STATE_FILE) < 0 ||
            fsync(dir) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "state: cannot be written (%s)", folder);
        return 0;
}
