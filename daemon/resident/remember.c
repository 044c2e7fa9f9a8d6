/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/remember.h"

#include "daemon/base/log.h"

#include <string.h>

void remember_init(struct remember *remember, struct resident *resident, struct work_pool *pool, const char *folder,
                   const struct state *also)
{
        *remember = (struct remember){.resident = resident, .pool = pool, .folder = folder, .also = also, .due = true};
}

void remember_deinit(struct remember *remember)
{
        msgpack_sbuffer_destroy(&remember->written);
        msgpack_sbuffer_destroy(&remember->next);
        msgpack_sbuffer_destroy(&remember->last);
}

void remember_changed(struct remember *remember)
{
        remember->due = true;
}

bool remember_idle(const struct remember *remember)
{
        return !remember->writing;
}

static int copy_model(struct state *state, const struct state_model *from)
{
        const struct origin *o = &from->origin;
        struct state_model *to = state_add(state, from->name, from->source);
        if (to == NULL || origin_init(&to->origin, o->uid, o->gid, o->groups, o->n_groups, o->pattern) < 0)
                return STREAMER_ENOMEM;
        to->owner = from->owner;
        to->number = from->number;
        to->keep_alive_ns = from->keep_alive_ns;
        to->drain_timeout_ns = from->drain_timeout_ns;
        to->priority = from->priority;
        to->verified = from->verified;
        to->ranks = from->ranks;
        int r = 0;
        for (size_t i = 0; r == 0 && i < from->n_devices; i++)
                r = state_add_device(to, from->devices[i], from->pins[i]);
        return r;
}

static bool is_on(const struct state_model *model, const char *uuid)
{
        for (size_t i = 0; i < model->n_devices; i++)
                if (strcmp(model->devices[i], uuid) == 0)
                        return true;
        return false;
}

/* Replicas that are wanted beside those that are there; ranks are there all or none. */
static int add_replicas(struct state_model *to, const struct state_model *from)
{
        int r = 0;
        if (to->ranks || from->ranks || strcmp(to->source, from->source) != 0)
                return 0;
        for (size_t i = 0; r == 0 && i < from->n_devices; i++)
                if (from->pins[i] && !is_on(to, from->devices[i]))
                        r = state_add_device(to, from->devices[i], true);
        return r;
}

/* Behind those that are resident, which alone stand in order then. */
static int add_wanted(struct state *state, const struct state *also)
{
        size_t n = state->n;
        int r = 0;
        for (size_t i = 0; r == 0 && i < also->n; i++) {
                const struct state resident = {.models = state->models, .n = n};
                const struct state_model *model = &also->models[i];
                struct state_model *there = state_find(&resident, model->name);
                if (model->pinned && there != NULL)
                        r = add_replicas(there, model);
                else if (model->pinned)
                        r = copy_model(state, model);
        }
        return r;
}

static int pack(const struct remember *remember, msgpack_sbuffer *out)
{
        struct state state;
        int r = state_of(&state, remember->resident);
        if (r == 0 && remember->also != NULL)
                r = add_wanted(&state, remember->also);
        if (r == 0)
                r = state_pack(&state, out);
        state_deinit(&state);
        return r;
}

static void save_run(struct work *work)
{
        struct remember *remember = container_of(work, struct remember, work);
        state_save(remember->folder, remember->next.data, remember->next.size, &remember->error);
}

static void save_done(struct work *work);

/* Takes the bytes over. */
static void save(struct remember *remember, const msgpack_sbuffer *bytes)
{
        remember->next = *bytes;
        remember->error = (struct error){0};
        remember->writing = true;
        work_submit(remember->pool, LANE_STATE, &remember->work, save_run, save_done);
}

static void save_done(struct work *work)
{
        struct remember *remember = container_of(work, struct remember, work);
        bool failed = remember->error.code != 0;
        remember->writing = false;
        if (failed && !remember->told)
                log_error("%s: what is resident will not be remembered", remember->error.text);
        remember->told = failed;
        remember->due |= failed; /* a disk that is full may not be so for ever */
        msgpack_sbuffer_destroy(&remember->written);
        if (failed) { /* which of the two the file has now is not known */
                msgpack_sbuffer_destroy(&remember->next);
                msgpack_sbuffer_init(&remember->written);
        } else {
                remember->written = remember->next;
        }
        msgpack_sbuffer_init(&remember->next);
        if (remember->last.size > 0) {
                msgpack_sbuffer last = remember->last;
                msgpack_sbuffer_init(&remember->last);
                save(remember, &last);
        }
}

void remember_tick(struct remember *remember)
{
        msgpack_sbuffer now;
        if (remember->folder == NULL || !remember->due || remember->writing || remember->frozen)
                return;
        if (pack(remember, &now) < 0)
                return; /* another time: there may be memory then */
        remember->due = false;
        if (now.size == remember->written.size && memcmp(now.data, remember->written.data, now.size) == 0) {
                msgpack_sbuffer_destroy(&now);
                return;
        }
        save(remember, &now);
}

void remember_freeze(struct remember *remember)
{
        if (remember->writing && remember->due && pack(remember, &remember->last) < 0)
                msgpack_sbuffer_init(&remember->last);
        remember_tick(remember);
        remember->frozen = true;
}
