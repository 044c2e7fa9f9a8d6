/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/again.h"

#include "daemon/base/log.h"

#include <inttypes.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
#define PAUSE_MAX (300 * SECOND)
/* That are begun in one tick. */
#define BEGIN_MOST 32

struct again_model {
        struct again *again;
        size_t index; /* in the state */
        unsigned tries;
        uint64_t due_ns;
        struct error error; /* of the last try; code 0: none has failed */
        struct load_watch watch;
};

static struct state_model *model_of(const struct again_model *m)
{
        return &m->again->state.models[m->index];
}

/* ---- settling ---- */

/* It is not wanted any more, and is not written as such. */
static void forget(struct again_model *m)
{
        struct again *again = m->again;
        for (size_t i = 0; i < again->n; i++)
                if (again->models[i] == m)
                        again->models[i] = again->models[--again->n];
        again->by_index[m->index] = NULL;
        model_of(m)->pinned = false;
        free(m);
}

/* On which of the devices where it was pinned it is missing. Ranks are loaded together. */
static size_t missing(const struct again_model *m, const char *devices[STATE_DEVICES])
{
        const struct state_model *model = model_of(m);
        struct resident *resident = m->again->resident;
        size_t n = 0;
        for (size_t i = 0; i < model->n_devices; i++) {
                struct error error;
                struct device *device = resident_device(resident, model->devices[i], &error);
                bool there = device != NULL && (resident_on(resident, model->name, GENERATION_READY, device) != NULL ||
                                                resident_on(resident, model->name, GENERATION_LOADING, device) != NULL);
                if (!there && (model->pins[i] || model->ranks))
                        devices[n++] = model->devices[i];
        }
        if (!model->ranks || n == 0)
                return n;
        for (n = 0; n < model->n_devices; n++)
                devices[n] = model->devices[n];
        return n;
}

static uint64_t pause_after(unsigned tries)
{
        uint64_t pause = SECOND;
        for (unsigned i = 1; i < tries && pause < PAUSE_MAX; i++)
                pause *= 2;
        return pause < PAUSE_MAX ? pause : PAUSE_MAX;
}

static void try_later(struct again_model *m, const struct error *error)
{
        uint64_t pause = pause_after(m->tries);
        m->due_ns = now_ns() + pause;
        m->error = *error;
        log_warn("%s: was pinned, and is tried again in %" PRIu64 " s: %s", model_of(m)->name, pause / SECOND,
                 error->text);
        if (m->again->changed != NULL)
                m->again->changed(m->again);
}

/* ---- loading ---- */

/* Why it is not on all of its devices; NULL: it is, or is not to be. */
static const struct error *lost_some(const struct again_model *m, const struct load *load)
{
        const char *devices[STATE_DEVICES];
        if (load->state == LOAD_FAILED)
                return &load->error;
        if (load->state == LOAD_CANCELLED || missing(m, devices) == 0)
                return NULL;
        for (size_t i = 0; i < load->n_targets; i++)
                if (load->targets[i].failed)
                        return &load->targets[i].error;
        return NULL;
}

static void ended(struct load_watch *watch, struct load *load)
{
        struct again_model *m = container_of(watch, struct again_model, watch);
        const struct error *error = lost_some(m, load);
        if (error != NULL)
                try_later(m, error);
        else
                forget(m); /* ready, or somebody cancelled it */
}

static void caller_of(const struct origin *origin, struct caller *caller)
{
        *caller = (struct caller){.uid = origin->uid, .gid = origin->gid, .n_groups = origin->n_groups};
        memcpy(caller->groups, origin->groups, origin->n_groups * sizeof(caller->groups[0]));
}

/* So long that all the others had their turn. */
static uint64_t limit_pause(const struct again *again)
{
        return SECOND + again->n / BEGIN_MOST * (SECOND / 10);
}

static void begin(struct again_model *m)
{
        const char *devices[STATE_DEVICES];
        const struct state_model *model = model_of(m);
        struct caller caller;
        struct user_limits limits;
        struct error error = {0};
        struct load *load;
        int r = 0;
        size_t n = missing(m, devices);
        if (n == 0) {
                forget(m);
                return;
        }
        caller_of(&model->origin, &caller);
        struct load_request request = {.source = model->source,
                                       .name = model->name,
                                       .devices = devices,
                                       .n_devices = n,
                                       .pattern = model->origin.pattern,
                                       .sha256 = model->verified,
                                       .wait = true,
                                       .pin = true,
                                       .admin = true, /* it was granted when it was asked for */
                                       .keep_alive_ns = model->keep_alive_ns,
                                       .drain_timeout_ns = model->drain_timeout_ns,
                                       .priority = model->priority,
                                       .caller = &caller,
                                       .owner = &model->owner};
        if (m->again->allow != NULL)
                r = m->again->allow(m->again, &request, &limits, &error);
        if (r == 0)
                r = loads_begin(m->again->loads, &request, &load, &error);
        if (r == STREAMER_ELIMIT) { /* others are under way: that is no failure of its own */
                m->due_ns = now_ns() + limit_pause(m->again);
                return;
        }
        m->tries++;
        m->due_ns = 0;
        if (r < 0)
                try_later(m, &error);
        else
                load_watch(load, &m->watch, ended);
}

void again_tick(struct again *again, uint64_t now)
{
        unsigned begun = 0;
        /* Each may leave the list. */
        for (size_t i = again->n; i-- > 0 && begun < BEGIN_MOST;)
                if (i < again->n && again->models[i]->watch.load == NULL && now >= again->models[i]->due_ns) {
                        begin(again->models[i]);
                        begun++;
                }
}

/* ---- life ---- */

#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* Taken from the end: so the most important is last, and of equals the oldest. */
static int by_priority(const void *a, const void *b)
{
        const struct again_model *const *x = a, *const *y = b;
        const struct state_model *m = model_of(*x), *n = model_of(*y);
        int r = ORDER(m->priority, n->priority);
        if (r == 0)
                r = ORDER(n->number, m->number);
        return r != 0 ? r : ORDER((*y)->index, (*x)->index);
}

static void want(struct again *again, size_t index)
{
        const char *devices[STATE_DEVICES];
        struct again_model *m = calloc(1, sizeof(*m));
        if (m == NULL)
                return;
        list_init(&m->watch.link);
        m->again = again;
        m->index = index;
        if (missing(m, devices) == 0) {
                free(m);
                again->state.models[index].pinned = false;
                return;
        }
        again->models[again->n++] = again->by_index[index] = m;
}

static bool read_state(struct again *again, const char *folder)
{
        struct error error = {0};
        int r = state_load(&again->state, folder, &error);
        if (r < 0 && r != STREAMER_ENOENT)
                log_error("%s; it is set aside, and nothing is loaded again (%s)", error.text, folder);
        return r == 0;
}

void again_init(struct again *again, struct loads *loads, struct resident *resident, const char *folder)
{
        *again = (struct again){.loads = loads, .resident = resident};
        if (folder == NULL || !read_state(again, folder))
                return;
        if (resident->last_number < again->state.last_number)
                resident->last_number = again->state.last_number;
        again->models = calloc(again->state.n + 1, sizeof(struct again_model *));
        again->by_index = calloc(again->state.n + 1, sizeof(struct again_model *));
        bool ok = again->models != NULL && again->by_index != NULL;
        for (size_t i = 0; ok && i < again->state.n; i++)
                if (again->state.models[i].pinned)
                        want(again, i);
        if (again->n == 0)
                return;
        qsort(again->models, again->n, sizeof(struct again_model *), by_priority);
        log_info("state: %zu pinned models are to be loaded again", again->n);
}

size_t again_left(const struct again *again)
{
        return again->n;
}

/* ---- what clients see and change ---- */

static void tell(const struct again_model *m, struct wanted *wanted)
{
        const struct state_model *model = model_of(m);
        *wanted = (struct wanted){.name = model->name,
                                  .source = model->source,
                                  .uid = model->owner,
                                  .priority = model->priority,
                                  .tries = m->tries,
                                  .pinned = true,
                                  .failed = m->error.code != 0 && m->watch.load == NULL,
                                  .error = m->error.text,
                                  .code = m->error.code,
                                  .retry_at_ns = m->due_ns};
}

void again_wanted(const struct again *again, size_t i, struct wanted *wanted)
{
        tell(again->models[i], wanted);
}

size_t again_next(const struct again *again, size_t from, struct wanted *wanted)
{
        for (size_t i = from; again->n > 0 && i < again->state.n; i++) {
                if (again->by_index[i] == NULL)
                        continue;
                tell(again->by_index[i], wanted);
                return i;
        }
        return SIZE_MAX;
}

static struct again_model *find(const struct again *again, const char *name)
{
        for (size_t i = 0; i < again->n; i++)
                if (strcmp(model_of(again->models[i])->name, name) == 0)
                        return again->models[i];
        return NULL;
}

bool again_find(const struct again *again, const char *name, struct wanted *wanted)
{
        const struct again_model *m = find(again, name);
        if (m != NULL)
                tell(m, wanted);
        return m != NULL;
}

static struct again_model *add(struct again *again, const struct generation *g, const char *name)
{
        struct again_model **models = reallocarray(again->models, again->n + 1, sizeof(struct again_model *));
        if (models == NULL)
                return NULL;
        again->models = models;
        models = reallocarray(again->by_index, again->state.n + 1, sizeof(struct again_model *));
        if (models == NULL)
                return NULL;
        again->by_index = models;
        struct again_model *m = calloc(1, sizeof(*m));
        if (m == NULL || state_add_generation(&again->state, g, name) == NULL) {
                free(m);
                return NULL;
        }
        list_init(&m->watch.link);
        m->again = again;
        m->index = again->state.n - 1;
        model_of(m)->pinned = true;
        again->models[again->n++] = again->by_index[m->index] = m;
        return m;
}

void again_add(struct again *again, const struct generation *generation, const char *name)
{
        struct again_model *m = find(again, name);
        if (m == NULL)
                m = add(again, generation, name);
        if (m == NULL || state_add_device(model_of(m), generation->device->uuid, true) < 0)
                log_error("%s: was pinned, and is not loaded again: no memory", name);
        qsort(again->models, again->n, sizeof(struct again_model *), by_priority);
}

static bool drop_device(struct state_model *model, const struct device *device)
{
        for (size_t i = 0; i < model->n_devices; i++) {
                if (strcmp(model->devices[i], device->uuid) != 0 || !(model->pins[i] || model->ranks))
                        continue;
                state_drop_device(model, i);
                return true;
        }
        return false;
}

bool again_forget(struct again *again, const char *name, const char *device_name)
{
        struct again_model *m = find(again, name);
        if (m == NULL)
                return false;
        if (device_name != NULL) {
                const struct device *device = resident_device(again->resident, device_name, NULL);
                if (device == NULL || !drop_device(model_of(m), device))
                        return false;
                if (model_of(m)->pinned && !model_of(m)->ranks)
                        return true;
        }
        load_unwatch(&m->watch); /* one that is under way goes on */
        forget(m);
        return true;
}

/* It is taken from the end, and may have to move there. */
bool again_set_priority(struct again *again, const char *name, unsigned priority)
{
        struct again_model *m = find(again, name);
        if (m == NULL)
                return false;
        model_of(m)->priority = priority;
        qsort(again->models, again->n, sizeof(struct again_model *), by_priority);
        return true;
}

void again_stop(struct again *again)
{
        for (size_t i = 0; i < again->n; i++) {
                load_unwatch(&again->models[i]->watch);
                free(again->models[i]);
        }
        again->n = 0;
}

void again_deinit(struct again *again)
{
        again_stop(again);
        free(again->models);
        free(again->by_index);
        state_deinit(&again->state);
}
