/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/desired.h"

#include "daemon/base/log/log.h"
#include "daemon/model/ranks.h"
#include "proto/codes.h"
#include "proto/hub.h"

#define PAUSE_MAX (300 * SECOND)

/* ---- what waits ---- */

static struct desired_model *queued(const struct tree_node *node)
{
        return container_of(node, struct desired_model, in_queue);
}

static struct desired_model *ordered(const struct tree_node *node)
{
        return container_of(node, struct desired_model, in_order);
}

/* Where a model is in the list. */
struct place {
        enum desired_origin origin;
        unsigned priority;
        uint64_t sequence;
};

static struct place place_of(const struct desired_model *m)
{
        return (struct place){m->origin, desired_priority(m), m->sequence};
}

unsigned desired_priority(const struct desired_model *m)
{
        return m->spec.settings.priority > 0 ? m->spec.settings.priority : PROTO_PRIORITY_DEFAULT;
}

static int compare_place(const struct place *a, const struct place *b)
{
        int r = ORDER(a->origin, b->origin);
        if (r == 0)
                r = ORDER(b->priority, a->priority);
        return r != 0 ? r : ORDER(a->sequence, b->sequence);
}

static int compare_models(const struct desired_model *a, const struct desired_model *b)
{
        const struct place x = place_of(a), y = place_of(b);
        return compare_place(&x, &y);
}

static int compare_ordered(const struct tree_node *a, const struct tree_node *b)
{
        return compare_models(ordered(a), ordered(b));
}

static int compare_with_place(const void *place, const struct tree_node *node)
{
        const struct place at = place_of(ordered(node));
        return compare_place(place, &at);
}

static int compare_due(const struct tree_node *a, const struct tree_node *b)
{
        return compare_models(queued(a), queued(b));
}

static int compare_later(const struct tree_node *a, const struct tree_node *b)
{
        int r = ORDER(queued(a)->retry_at_ns, queued(b)->retry_at_ns);
        return r != 0 ? r : compare_due(a, b);
}

static bool is_listed(const struct desired_model *m)
{
        return tree_is_linked(&m->in_order);
}

/* What is tried at once is due already. */
static struct tree *queue_of(struct desired_model *m)
{
        return m->retry_at_ns == 0 ? &m->desired->due[m->origin] : &m->desired->later;
}

static void leave_queue(struct desired_model *m)
{
        tree_remove(queue_of(m), &m->in_queue);
}

/* WAITING, in the list, and in no queue. */
static void enter_queue(struct desired_model *m, uint64_t retry_at_ns)
{
        require(m->state == DESIRED_WAITING && is_listed(m) && !tree_is_linked(&m->in_queue));
        m->retry_at_ns = retry_at_ns;
        tree_insert(queue_of(m), &m->in_queue);
}

/* The next attempt is not before then. */
static void retry_at(struct desired_model *m, uint64_t at_ns)
{
        leave_queue(m);
        enter_queue(m, at_ns);
}

/* ---- states ---- */

static size_t *count_of(const struct desired_model *m)
{
        return &m->desired->n_in_state[m->origin][m->state];
}

/* One that waits is tried at once, unless retry_at() follows. */
static void set_state(struct desired_model *m, enum desired_state state)
{
        bool listed = is_listed(m);
#define TO(state) (1u << DESIRED_##state)
        static const unsigned allowed[] = {
                [DESIRED_WAITING] = TO(RESOLVING) | TO(LOADING) | TO(READY) | TO(GIVEN_UP) | TO(CANCELLED),
                [DESIRED_RESOLVING] = TO(WAITING) | TO(LOADING) | TO(GIVEN_UP) | TO(REMOVED),
                [DESIRED_LOADING] = TO(WAITING) | TO(READY) | TO(GIVEN_UP) | TO(CANCELLED),
                [DESIRED_READY] = TO(WAITING) | TO(UNLOADED),
                [DESIRED_GIVEN_UP] = TO(WAITING) | TO(READY) | TO(CANCELLED),
                [DESIRED_CANCELLED] = TO(WAITING) | TO(READY) | TO(CANCELLED),
                [DESIRED_UNLOADED] = 0,
        };
#undef TO
        require(!listed || *count_of(m) > 0);
        *count_of(m) -= listed ? 1 : 0;
        leave_queue(m);
        change_state(m->state, state, allowed);
        m->retry_at_ns = 0;
        *count_of(m) += listed ? 1 : 0;
        if (listed && state == DESIRED_WAITING)
                enter_queue(m, 0);
}

static void notify(const struct desired_model *m)
{
        if (m->desired->changed != NULL)
                m->desired->changed(m->desired, m->spec.name);
}

static bool is_pending(const struct desired_model *m)
{
        return m->state != DESIRED_READY && m->state != DESIRED_UNLOADED;
}

/* Of a restored model. */
static void rows_due(const struct desired_model *m)
{
        struct desired *d = m->desired;
        for (size_t i = 0; i < m->spec.n_devices && m->origin == DESIRED_RESTORED && d->row_due != NULL; i++)
                d->row_due(d, m->spec.name, m->spec.devices[i].uuid);
}

static bool is_in_progress(const struct desired_model *m)
{
        return m->state == DESIRED_RESOLVING || m->state == DESIRED_LOADING;
}

/* ---- models ---- */

/* Not in the list, and without `spec`. NULL: no memory. */
static struct desired_model *model_new(struct desired *d, enum desired_origin origin)
{
        struct desired_model *m = calloc(1, sizeof(*m));
        if (m == NULL)
                return NULL;
        list_init(&m->link);
        list_init(&m->in_check);
        tree_node_init(&m->in_order);
        tree_node_init(&m->by_name);
        tree_node_init(&m->in_queue);
        list_init(&m->watch.link);
        m->desired = d;
        m->origin = origin;
        return m;
}

/* Out of the list, the index and its queue, in which its place may change. */
static void leave(struct desired_model *m)
{
        if (!is_listed(m))
                return;
        require(*count_of(m) > 0);
        m->desired->n_changes++;
        --*count_of(m);
        leave_queue(m);
        tree_remove(&m->desired->by_name, &m->by_name);
        tree_remove(&m->desired->models, &m->in_order);
}

static void model_free(struct desired_model *m)
{
        if (is_listed(m))
                rows_due(m);
        leave(m);
        list_remove(&m->link);
        list_remove(&m->in_check);
        load_unwatch(&m->watch);
        model_record_deinit(&m->spec);
        free(m->path);
        free(m);
}

static struct desired_model *model_of(const struct tree_node *node)
{
        return container_of(node, struct desired_model, by_name);
}

static int compare_name(const void *name, const struct tree_node *node)
{
        return strcmp(name, model_of(node)->spec.name);
}

/* By name, then in the order of the list. */
static int compare_by_name(const struct tree_node *a, const struct tree_node *b)
{
        const struct desired_model *x = model_of(a), *y = model_of(b);
        int r = strcmp(x->spec.name, y->spec.name);
        return r != 0 ? r : compare_models(x, y);
}

/* Behind its equals. */
static void insert(struct desired_model *m)
{
        require(!is_listed(m) && list_empty(&m->link));
        m->sequence = ++m->desired->last_sequence;
        m->desired->n_changes++;
        tree_insert(&m->desired->models, &m->in_order);
        tree_insert(&m->desired->by_name, &m->by_name);
        ++*count_of(m);
        if (m->state == DESIRED_WAITING)
                enter_queue(m, m->retry_at_ns);
        rows_due(m);
}

/* The first model of the name, and the next one after `m`; NULL: none. */
static struct desired_model *first_of(const struct desired *d, const char *name)
{
        struct desired_model *m = tree_item(tree_from(&d->by_name, name, compare_name), struct desired_model, by_name);
        return m != NULL && strcmp(m->spec.name, name) == 0 ? m : NULL;
}

static struct desired_model *next_of(const struct desired_model *m)
{
        struct desired_model *next = tree_item(tree_next(&m->by_name), struct desired_model, by_name);
        return next != NULL && strcmp(next->spec.name, m->spec.name) == 0 ? next : NULL;
}

/* The current one may be freed, or change its place. */
#define each_named(m, d, name)                                                                                         \
        for (struct desired_model *m = first_of(d, name), *m##_next = m != NULL ? next_of(m) : NULL; m != NULL;        \
             m = m##_next, m##_next = m != NULL ? next_of(m) : NULL)

/* Of a configured model: on a later turn of the loop it is compared with what is resident. */
static void check_later(struct desired_model *m)
{
        struct desired *d = m->desired;
        if (list_empty(&m->in_check))
                list_append(&d->to_check, &m->in_check);
        wake_post(d->loads->resident->wake, &d->check);
}

/* READY; else cancelled. Frees a restored model. */
static void settle_consume(struct desired_model *m, bool ready)
{
        set_state(m, ready ? DESIRED_READY : DESIRED_CANCELLED);
        m->error = (struct error){0};
        m->evicted = false;
        m->checked_ns = now_ns();
        if (!ready) {
                m->attempts = 0;
                error_set(&m->error, STREAMER_ECANCELED, "cancelled");
        }
        notify(m);
        if (m->origin == DESIRED_RESTORED)
                model_free(m);
        else
                check_later(m); /* it may have been lost since its load ended */
}

/* ---- devices ---- */

static bool is_ready_on(const struct desired_model *m, const struct device *device)
{
        return device != NULL &&
               resident_on(m->desired->loads->resident, m->spec.name, GENERATION_READY, device) != NULL;
}

/* The devices on which the model is to be loaded. A restored model is not loaded where its name is resident, whatever
 * the source, nor is one that was evicted; another configured one may replace another source there. Ranks are loaded
 * together. */
static size_t list_missing(const struct desired_model *m, const char *devices[LOAD_DEVICES])
{
        struct resident *resident = m->desired->loads->resident;
        const struct model_record *s = &m->spec;
        size_t n = 0;
        for (size_t i = 0; i < s->n_devices; i++) {
                const struct device *device = resident_device(resident, s->devices[i].uuid, NULL);
                bool restored = m->origin == DESIRED_RESTORED;
                bool serves = (restored || m->evicted) && is_ready_on(m, device);
                serves |= restored && device != NULL &&
                          resident_on(resident, s->name, GENERATION_LOADING, device) != NULL;
                if (s->devices[i].pinned && !serves)
                        devices[n++] = s->devices[i].uuid;
        }
        if (s->ranks && n > 0)
                for (n = 0; n < s->n_devices; n++)
                        devices[n] = s->devices[n].uuid;
        return n;
}

/* Without devices it is not: the daemon has several and none is named, so the attempt fails. */
static bool is_complete(const struct desired_model *m)
{
        const char *devices[LOAD_DEVICES];
        return m->spec.n_devices > 0 && list_missing(m, devices) == 0;
}

/* Whether the model is desired, on all of its devices. */
static void set_pins(struct desired_model *m, bool pin)
{
        for (size_t i = 0; i < m->spec.n_devices; i++)
                m->spec.devices[i].pinned = pin;
}

static bool *find_pin(struct desired_model *m, const struct device *device)
{
        struct resident *resident = m->desired->loads->resident;
        const struct model_record *s = &m->spec;
        for (size_t i = 0; i < s->n_devices; i++)
                if (s->devices[i].pinned && resident_device(resident, s->devices[i].uuid, NULL) == device)
                        return &s->devices[i].pinned;
        return NULL;
}

void desired_settings(const struct desired *d, const char *name, const struct device *device,
                      struct model_settings *settings)
{
        each_named(m, d, name)
        {
                if (m->origin != DESIRED_RESTORED || find_pin(m, device) == NULL)
                        continue;
                settings->priority = desired_priority(m);
                settings->keep_alive_ns = m->spec.settings.keep_alive_ns;
                return;
        }
}

/* A client's load under the name of a restored model is in progress, where nothing serves. */
static bool others_load(const struct desired_model *m)
{
        struct resident *resident = m->desired->loads->resident;
        for (size_t i = 0; i < m->spec.n_devices && m->origin == DESIRED_RESTORED; i++) {
                const struct device *device = resident_device(resident, m->spec.devices[i].uuid, NULL);
                if (m->spec.devices[i].pinned && device != NULL && !is_ready_on(m, device) &&
                    resident_on(resident, m->spec.name, GENERATION_LOADING, device) != NULL)
                        return true;
        }
        return false;
}

/* What serves under the name of a restored model, by a client's load, has the settings that the name had before, but
 * for those that have been asked for since. */
static void hand_over(const struct desired_model *m)
{
        struct resident *resident = m->desired->loads->resident;
        struct settings_change change = {.to = m->spec.settings};
        change.to.pinned = true;
        for (size_t i = 0; i < m->spec.n_devices && m->origin == DESIRED_RESTORED; i++) {
                const struct device *device = resident_device(resident, m->spec.devices[i].uuid, NULL);
                struct generation *g = m->spec.devices[i].pinned && device != NULL
                                               ? resident_on(resident, m->spec.name, GENERATION_READY, device)
                                               : NULL;
                struct model_name *name = g != NULL ? generation_find_name(g, m->spec.name) : NULL;
                if (name == NULL)
                        continue;
                change.asks = SETTINGS_OF_NAME & ~name->asked;
                model_name_change_settings(name, &change);
        }
}

/* ---- attempts ---- */

/* The retry policy. */
static void attempt_failed(struct desired_model *m, const struct error *error)
{
        static const char *const origins[] = {[DESIRED_RESTORED] = "restore", [DESIRED_CONFIGURED] = "preload"};
        bool permanent = error->code == STREAMER_EINVAL || error->code == STREAMER_EUNSUPPORTED;
        uint64_t pause = backoff(m->desired->limits->preload_retry_ns, m->attempts, PAUSE_MAX);
        char title[REDACTED_SOURCE], next[40] = "not retried";
        m->error = *error;
        set_state(m, permanent ? DESIRED_GIVEN_UP : DESIRED_WAITING);
        if (!permanent) {
                retry_at(m, now_ns() + pause);
                snprintf(next, sizeof(next), "next in %.1f s", (double)pause / SECOND);
        }
        desired_title(title, m);
        log_event(permanent ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN, LOG_NO_ID,
                  LOG_FIELDS(LOG_TEXT("model", title), LOG_TEXT("code", code_wire(error->code))),
                  "%s: %s: attempt %u failed, %s: %s", origins[m->origin], title, m->attempts, next, m->error.text);
        notify(m);
}

/* Another may begin, in a later turn of the loop. */
static void attempt_ended(struct desired *d, enum desired_origin origin)
{
        d->ended[origin]++;
        wake_post(d->loads->resident->wake, &d->start_next);
}

/* Complete, by its own loads or by those of clients, of which it waits for the end. Frees a restored model. */
static void complete_consume(struct desired_model *m)
{
        if (others_load(m)) {
                m->attempts--;
                set_state(m, DESIRED_WAITING);
                retry_at(m, now_ns() + SECOND);
                return;
        }
        hand_over(m);
        settle_consume(m, m->served);
}

static void load_done(struct load_watch *watch, struct load_request *request)
{
        const struct load *load = request->load;
        struct desired_model *m = container_of(watch, struct desired_model, watch);
        attempt_ended(m->desired, m->origin);
        const struct error *error = load->state == LOAD_READY ? NULL : &load->error;
        /* From now on the model is desired only on the devices that failed. */
        rows_due(m);
        load_each_target (target, load) {
                bool *pin = load->state == LOAD_READY ? find_pin(m, target->device) : NULL;
                if (load->state == LOAD_READY && target->state != TARGET_FAILED)
                        m->served = true;
                if (pin != NULL && target->state != TARGET_FAILED)
                        *pin = false;
                else if (pin != NULL && error == NULL)
                        error = &target->error;
        }
        if (load->state == LOAD_CANCELLED)
                settle_consume(m, false);
        else if (is_complete(m))
                complete_consume(m);
        else if (error != NULL)
                attempt_failed(m, error);
        else
                set_state(m, DESIRED_WAITING); /* for devices that became desired meanwhile */
}

static void start_load_consume(struct desired_model *m, const char *source)
{
        struct desired *d = m->desired;
        const struct model_record *s = &m->spec;
        bool restored = m->origin == DESIRED_RESTORED;
        const char *devices[LOAD_DEVICES];
        struct quota_limits limits;
        struct error error = {0};
        struct load_request *begun;
        int r = 0;
        set_state(m, DESIRED_LOADING);
        if (is_complete(m)) {
                complete_consume(m);
                return;
        }
        struct load_args request = {.source = source,
                                    .name = s->name,
                                    .devices = devices,
                                    .n_devices = list_missing(m, devices),
                                    .pattern = s->pattern,
                                    .sha256 = s->verified,
                                    .wait = restored,
                                    .no_evict = !restored,
                                    .background = restored,
                                    .retention = s->settings,
                                    .admin = true, /* granted when it was first requested */
                                    .caller = &s->caller,
                                    .owner = &s->owner};
        if (restored && d->allow != NULL)
                r = d->allow(d, &request, &limits, &error);
        if (r == 0)
                r = loads_begin(d->loads, &request, &begun, &error);
        if (r == 0) {
                load_watch(begun, &m->watch, load_done);
        } else if (r == STREAMER_ELIMIT) {
                m->attempts--;
                set_state(m, DESIRED_WAITING);
                /* A pause in which each of the others has its turn. */
                retry_at(m, now_ns() + SECOND + d->models.n / DESIRED_RESTORED_AT_ONCE * (SECOND / 10));
        } else {
                attempt_failed(m, &error);
        }
}

static void resolve_run(struct work *work)
{
        struct desired_model *m = container_of(work, struct desired_model, work);
        char text[sizeof(m->error.text)];
        int r = hub_resolve(m->spec.source, &m->path, text, sizeof(text));
        if (r < 0)
                error_set(&m->error, r, "%s", text);
}

static void resolve_done(struct work *work)
{
        struct desired_model *m = container_of(work, struct desired_model, work);
        attempt_ended(m->desired, m->origin); /* where its load begins now, the number under way is reached already */
        if (m->state == DESIRED_REMOVED)
                model_free(m);
        else if (m->error.code != 0)
                attempt_failed(m, &m->error);
        else if (m->desired->closing)
                set_state(m, DESIRED_WAITING);
        else
                start_load_consume(m, m->path);
}

static void attempt_consume(struct desired_model *m)
{
        m->attempts++;
        m->error = (struct error){0};
        if (m->origin == DESIRED_RESTORED || !hub_is_id(m->spec.source)) {
                start_load_consume(m, m->spec.source);
                return;
        }
        free(m->path);
        m->path = NULL;
        set_state(m, DESIRED_RESOLVING);
        work_submit(m->desired->loads->pool, WORK_LANE_HUB, &m->work, resolve_run, resolve_done);
}

/* Up to n of those that are due. */
static void start(struct desired *d, enum desired_origin origin, size_t n)
{
        struct desired_model *m;
        for (; n > 0 && (m = tree_item(tree_first(&d->due[origin]), struct desired_model, in_queue)) != NULL; n--)
                attempt_consume(m);
}

static size_t count_in_progress(const struct desired *d, enum desired_origin origin)
{
        return d->n_in_state[origin][DESIRED_RESOLVING] + d->n_in_state[origin][DESIRED_LOADING];
}

/* How many more may be under way. */
static size_t count_free(const struct desired *d, enum desired_origin origin)
{
        size_t most = origin == DESIRED_RESTORED ? DESIRED_RESTORED_AT_ONCE : d->limits->preload_loads;
        size_t n = count_in_progress(d, origin);
        return n < most ? most - n : 0;
}

static void on_start_next(struct callback *callback)
{
        struct desired *d = container_of(callback, struct desired, start_next);
        for (enum desired_origin origin = 0; origin < DESIRED_ORIGINS; origin++) {
                size_t n = count_free(d, origin);
                n = d->ended[origin] < n ? d->ended[origin] : n;
                d->ended[origin] = 0;
                bool others_load = d->loads->n_running > d->loads->n_background;
                if (!d->closing && (origin == DESIRED_CONFIGURED || !others_load))
                        start(d, origin, n);
        }
}

/* ---- models that were ready ---- */

/* Whether the name was lost on the device since the last check and somebody misses it: it was evicted, or damaged. */
static bool is_missing_on(const struct desired_model *m, const struct device *device, struct error *error)
{
        struct resident *resident = m->desired->loads->resident;
        const struct ended *e = NULL;
        if (device == NULL || is_ready_on(m, device))
                return false;
        if (resident_on(resident, m->spec.name, GENERATION_CACHED, device) != NULL) {
                error_set(error, STREAMER_ENOMEM, "%s", end_name(END_EVICTED));
                return true;
        }
        while ((e = ended_find(&resident->ended, m->spec.name, e)) != NULL && e->at_ns > m->checked_ns) {
                if (strcmp(e->device, device->name) != 0 || e->reason.end == END_FAILED)
                        continue;
                bool missing = e->reason.end == END_EVICTED || e->reason.end == END_DAMAGED;
                if (missing)
                        error_set(error, STREAMER_ENOMEM, "%s: %s", end_name(e->reason.end), e->reason.text ?: "");
                return missing;
        }
        return false;
}

static void retry_evicted(struct desired_model *m, const struct error *error)
{
        char title[REDACTED_SOURCE];
        require(m->state == DESIRED_READY && m->origin == DESIRED_CONFIGURED);
        m->error = *error;
        m->evicted = true;
        m->attempts = 0;
        set_state(m, DESIRED_WAITING);
        retry_at(m, now_ns() + m->desired->limits->preload_retry_ns);
        desired_title(title, m);
        log_event(LOG_LEVEL_WARN, LOG_NO_ID, LOG_FIELDS(LOG_TEXT("model", title)),
                  "preload: %s: missing until there is memory for it: %s", title, error->text);
        notify(m);
}

/* READY: whether it is still, is missing, or was unloaded on all of its devices. */
static void check_ready(struct desired_model *m)
{
        struct error error = {0};
        bool serves = false, missing = false;
        require(m->state == DESIRED_READY);
        for (size_t i = 0; i < m->spec.n_devices; i++) {
                const struct device *device =
                        resident_device(m->desired->loads->resident, m->spec.devices[i].uuid, NULL);
                bool *pinned = &m->spec.devices[i].pinned;
                serves |= is_ready_on(m, device);
                *pinned = is_missing_on(m, device, &error);
                missing |= *pinned;
        }
        m->checked_ns = now_ns();
        if (missing && m->spec.ranks)
                set_pins(m, true);
        if (missing)
                retry_evicted(m, &error);
        else if (!serves)
                set_state(m, DESIRED_UNLOADED);
}

static void on_check(struct callback *callback)
{
        struct desired *d = container_of(callback, struct desired, check);
        while (!list_empty(&d->to_check) && !d->closing) {
                struct desired_model *m = container_of(d->to_check.next, struct desired_model, in_check);
                list_remove(&m->in_check);
                if (m->state == DESIRED_READY)
                        check_ready(m);
                else if (m->state == DESIRED_WAITING && m->evicted && is_complete(m))
                        settle_consume(m, true);
        }
}

/* A restored model that waits for its next attempt and has become resident by others' loads need not wait. */
static void hurry(struct desired_model *m)
{
        if (m->state != DESIRED_WAITING || m->retry_at_ns == 0 || !is_complete(m))
                return;
        retry_at(m, 0);
        attempt_ended(m->desired, DESIRED_RESTORED);
}

void desired_name_changed(struct desired *d, const char *name, bool ready)
{
        each_named(m, d, name)
        {
                if (m->origin == DESIRED_CONFIGURED)
                        check_later(m);
                else if (ready)
                        hurry(m);
        }
}

uint64_t desired_tick(struct desired *d, uint64_t now)
{
        struct desired_model *next;
        while ((next = tree_item(tree_first(&d->later), struct desired_model, in_queue)) != NULL &&
               next->retry_at_ns <= now)
                retry_at(next, 0);
        size_t restored = count_free(d, DESIRED_RESTORED);
        start(d, DESIRED_RESTORED, restored > 0 ? restored : 1);
        start(d, DESIRED_CONFIGURED, count_free(d, DESIRED_CONFIGURED));
        next = tree_item(tree_first(&d->later), struct desired_model, in_queue);
        /* A configured model that is due waits for the end of another, or for a reload. */
        return d->due[DESIRED_RESTORED].n > 0 ? now : next != NULL ? next->retry_at_ns : UINT64_MAX;
}

/* ---- configured models ---- */

/* As of a load without a name; of a Hub id without the revision, unless an earlier entry has another one. */
static char *derive_name(const struct desired *d, const struct model_record *entry)
{
        struct error error;
        char *name = NULL;
        if (entry->name != NULL)
                return strdup(entry->name);
        if (hub_is_id(entry->source)) {
                name = strndup(entry->source, strcspn(entry->source, "@"));
                const struct desired_model *other = name != NULL ? desired_find(d, name) : NULL;
                if (other == NULL || strcmp(other->spec.source, entry->source) == 0)
                        return name;
                free(name);
                return strdup(entry->source);
        }
        int r = loads_default_name(d->loads, entry->source, NULL, &name, &error);
        return r == 0 || r == STREAMER_ENOMEM ? name : strdup(entry->source); /* its load will report the error */
}

/* The load that the entry describes, on all of its devices. NULL: no memory. */
static struct desired_model *configured_new(struct desired *d, const struct model_record *entry)
{
        const struct device *only = resident_device(d->loads->resident, NULL, NULL);
        cleanup_free char *name = derive_name(d, entry);
        struct desired_model *m = name != NULL ? model_new(d, DESIRED_CONFIGURED) : NULL;
        char pattern[] = RANKS_PATTERN;
        struct model_record spec = *entry;
        if (m == NULL)
                return NULL;
        m->named = entry->name != NULL;
        spec.name = name;
        spec.caller = (struct caller){.uid = geteuid(), .gid = getegid()};
        spec.owner = geteuid();
        if (spec.ranks && spec.pattern == NULL)
                spec.pattern = pattern;
        int r = model_record_copy(&m->spec, &spec);
        if (r == 0 && spec.n_devices == 0 && only != NULL)
                r = model_record_add_device(&m->spec, only->name, false);
        if (r < 0) {
                model_free(m);
                return NULL;
        }
        set_pins(m, true);
        return m;
}

/* A configured model is desired on all of its devices again. */
static void rearm(struct desired_model *m)
{
        if (!is_pending(m))
                return;
        if (m->origin == DESIRED_CONFIGURED)
                set_pins(m, true);
        if (m->state != DESIRED_GIVEN_UP && m->state != DESIRED_CANCELLED)
                return;
        m->attempts = 0;
        m->error = (struct error){0};
        set_state(m, DESIRED_WAITING);
}

int desired_configure(struct desired *d, const struct model_record *entries, size_t n, struct error *error)
{
        struct list before;
        int r = 0;
        list_init(&before);
        tree_each_item_safe(struct desired_model, m, &d->models, in_order)
        {
                rearm(m);
                if (m->origin == DESIRED_RESTORED)
                        continue;
                leave(m);
                list_append(&before, &m->link);
        }
        for (size_t i = 0; i < n; i++) {
                struct desired_model *m = NULL;
                list_each_item (struct desired_model, known, &before, link)
                        if (m == NULL && model_record_equal(known->entry, &entries[i]))
                                m = known;
                m = m ?: configured_new(d, &entries[i]);
                if (m == NULL) {
                        r = error_no_memory(error);
                        continue;
                }
                m->entry = &entries[i];
                list_remove(&m->link);
                insert(m);
        }
        list_each_item_safe (struct desired_model, m, &before, link) {
                list_remove(&m->link);
                notify(m);
                if (m->state == DESIRED_RESOLVING)
                        set_state(m, DESIRED_REMOVED);
                else
                        model_free(m);
        }
        return r;
}

/* ---- restored models: those that were pinned and are not resident ---- */

/* Desired on the device of the row, whose texts are copied. */
static struct desired_model *restored_new(struct desired *d, const struct name_row *row)
{
        struct desired_model *m = model_new(d, DESIRED_RESTORED);
        const struct model_record spec = {.name = row->name,
                                          .source = row->source,
                                          .number = row->number,
                                          .verified = row->verified,
                                          .caller = row->caller,
                                          .pattern = row->pattern,
                                          .settings = row->settings,
                                          .owner = row->owner,
                                          .ranks = row->n_ranks > 0};
        require(row->loadable);
        if (m == NULL)
                return NULL;
        m->named = true;
        if (model_record_copy(&m->spec, &spec) == 0 &&
            model_record_add_device(&m->spec, row->device, row->settings.pinned) == 0)
                return m;
        model_free(m);
        return NULL;
}

static int compare_settings(const struct model_settings *x, const struct model_settings *y)
{
        int r = ORDER(x->priority, y->priority);
        if (r == 0)
                r = ORDER(x->keep_alive_ns, y->keep_alive_ns);
        return r != 0 ? r : ORDER(x->drain_timeout_ns, y->drain_timeout_ns);
}

/* Rows of one load: they differ in their devices, and in whether they are pinned. Ranks have the settings of the first.
 */
static int compare_loads(const struct name_row *x, const struct name_row *y)
{
        int r = strcmp(x->name, y->name);
        if (r == 0)
                r = strcmp(x->source, y->source);
        if (r == 0)
                r = strcmp(x->pattern != NULL ? x->pattern : "", y->pattern != NULL ? y->pattern : "");
        if (r == 0)
                r = ORDER(x->n_ranks, y->n_ranks);
        if (r == 0 && x->n_ranks > 0)
                r = ORDER(x->number, y->number);
        if (r == 0 && x->n_ranks == 0)
                r = compare_settings(&x->settings, &y->settings);
        if (r == 0)
                r = ORDER(x->verified, y->verified);
        if (r == 0)
                r = ORDER(x->owner, y->owner);
        return r != 0 ? r : ORDER(x->caller.uid, y->caller.uid);
}

/* Loadable ones first, by load and rank. */
static int compare_rows(const void *a, const void *b)
{
        const struct name_row *x = a, *y = b;
        int r = ORDER(y->loadable, x->loadable);
        if (r == 0 && x->loadable)
                r = compare_loads(x, y);
        if (r == 0)
                r = ORDER(x->rank, y->rank);
        return r != 0 ? r : ORDER(x->number, y->number);
}

/* The oldest first. */
static int compare_ages(const void *a, const void *b)
{
        const struct desired_model *x = *(struct desired_model *const *)a, *y = *(struct desired_model *const *)b;
        int r = ORDER(x->spec.number, y->spec.number);
        return r != 0 ? r : strcmp(x->spec.name, y->spec.name);
}

/* Whether a model is resident under the name of the row, on its device; without one, on any. */
static bool serves(const struct desired *d, const struct name_row *row)
{
        struct resident *resident = d->loads->resident;
        const struct device *device = row->device != NULL ? resident_device(resident, row->device, NULL) : NULL;
        return (row->device == NULL || device != NULL) &&
               resident_on(resident, row->name, GENERATION_READY, device) != NULL;
}

/* The n rows of one load. NULL: it is not pinned, or resident, or there is no memory. */
static struct desired_model *restored_of(struct desired *d, const struct name_row *rows, size_t n)
{
        bool pinned = false;
        for (size_t i = 0; i < n; i++)
                pinned |= rows[i].settings.pinned;
        struct desired_model *m = pinned ? restored_new(d, rows) : NULL;
        int r = 0;
        for (size_t i = 1; i < n && m != NULL; i++)
                r = r ?: model_record_add_device(&m->spec, rows[i].device, rows[i].settings.pinned);
        if (pinned && (m == NULL || r < 0))
                log_error("%s: was pinned, and is not restored: no memory", rows[0].name);
        if (m == NULL)
                return NULL;
        if (m->spec.ranks)
                set_pins(m, true);
        if (r == 0 && !is_complete(m))
                return m;
        model_free(m);
        return NULL;
}

/* A pinned name that nothing can load. */
static void warn_lost(const struct name_row *row)
{
        if (!row->settings.pinned || row->source == NULL)
                return;
        bool published = strncmp(row->source, PUBLISHED_SOURCE, strlen(PUBLISHED_SOURCE)) == 0;
        log_warn("%s: was pinned, and is not loaded again: %s (%s)", row->name,
                 published ? "a client has published it" : "the query of its URL is not persisted", row->source);
}

void desired_restore(struct desired *d, struct snapshot *snapshot)
{
        struct name_row *rows = snapshot->rows;
        size_t n_restored = 0;
        if (snapshot->n_rows == 0)
                return;
        qsort(rows, snapshot->n_rows, sizeof(*rows), compare_rows);
        struct desired_model **restored = calloc(snapshot->n_rows, sizeof(struct desired_model *));
        require(restored != NULL); /* at the start */
        for (size_t i = 0, n; i < snapshot->n_rows; i += n) {
                n = 1;
                if (!rows[i].loadable) {
                        if (!serves(d, &rows[i]))
                                warn_lost(&rows[i]);
                        continue;
                }
                while (i + n < snapshot->n_rows && rows[i + n].loadable && compare_loads(&rows[i], &rows[i + n]) == 0)
                        n++;
                struct desired_model *m = restored_of(d, &rows[i], n);
                if (m != NULL)
                        restored[n_restored++] = m;
        }
        qsort(restored, n_restored, sizeof(struct desired_model *), compare_ages);
        for (size_t i = 0; i < n_restored; i++)
                insert(restored[i]);
        free(restored);
        if (n_restored > 0)
                log_info("restore: %zu pinned models are not resident and will be loaded", n_restored);
}

void desired_add(struct desired *d, const struct generation *generation, const char *name)
{
        struct name_row row;
        struct desired_model *m = NULL;
        if (name_row_of(&row, generation_find_name(generation, name)) < 0) {
                log_error("%s: was pinned, and is not restored: no memory", name);
                return;
        }
        each_named(known, d, name) if (m == NULL && known->origin == DESIRED_RESTORED &&
                                       strcmp(known->spec.source, row.source) == 0 &&
                                       (known->spec.ranks ||
                                        compare_settings(&known->spec.settings, &row.settings) == 0)) m = known;
        row.settings.pinned = true;
        if (!row.loadable)
                warn_lost(&row);
        else if (m == NULL && (m = restored_new(d, &row)) != NULL)
                insert(m);
        else if (m == NULL || model_record_add_device(&m->spec, row.device, true) < 0)
                log_error("%s: was pinned, and is not restored: no memory", name);
        if (m != NULL)
                rows_due(m);
        free(row.source);
}

void desired_mark(const struct desired *d)
{
        desired_each (m, d)
                rows_due(m);
}

/* The first that is desired there; what is resident under the name, or loads to be pinned, has a row of its own. */
bool desired_row(const struct desired *d, const char *name, const char *device, struct name_row *row)
{
        each_named(m, d, name)
        {
                const struct model_record *spec = &m->spec;
                for (size_t i = 0; i < spec->n_devices && m->origin == DESIRED_RESTORED; i++) {
                        if (!spec->devices[i].pinned || strcmp(spec->devices[i].uuid, device) != 0)
                                continue;
                        *row = (struct name_row){.name = spec->name,
                                                 .device = spec->devices[i].uuid,
                                                 .source = spec->source,
                                                 .pattern = spec->pattern,
                                                 .number = spec->number,
                                                 .verified = spec->verified,
                                                 .loadable = true,
                                                 .caller = spec->caller,
                                                 .settings = spec->settings,
                                                 .owner = spec->owner,
                                                 .rank = spec->ranks ? (uint32_t)i : 0,
                                                 .n_ranks = spec->ranks ? (uint32_t)spec->n_devices : 0};
                        row->settings.pinned = true;
                        return true;
                }
        }
        return false;
}

/* ---- life ---- */

void desired_init(struct desired *d, struct loads *loads, const struct limits *limits)
{
        *d = (struct desired){.loads = loads, .limits = limits};
        tree_init(&d->models, compare_ordered);
        tree_init(&d->by_name, compare_by_name);
        tree_init(&d->due[DESIRED_RESTORED], compare_due);
        tree_init(&d->due[DESIRED_CONFIGURED], compare_due);
        tree_init(&d->later, compare_later);
        list_init(&d->to_check);
        d->start_next.run = on_start_next;
        d->check.run = on_check;
}

void desired_close(struct desired *d)
{
        store_relaxed(&d->closing, true);
        tree_each_item(struct desired_model, m, &d->models, in_order) load_unwatch(&m->watch);
}

void desired_deinit(struct desired *d)
{
        tree_each_item_safe(struct desired_model, m, &d->models, in_order) model_free(m);
}

/* ---- queries ---- */

const struct desired_model *desired_find(const struct desired *d, const char *name)
{
        each_named(m, d, name) if (is_pending(m)) return m;
        return NULL;
}

static const struct desired_model *pending_from(const struct tree_node *node)
{
        const struct desired_model *m = tree_item(node, struct desired_model, by_name);
        while (m != NULL && !is_pending(m))
                m = tree_item(tree_next(&m->by_name), struct desired_model, by_name);
        return m;
}

const struct desired_model *desired_from(const struct desired *d, const char *name)
{
        return pending_from(tree_from(&d->by_name, name, compare_name));
}

const struct desired_model *desired_next(const struct desired_model *m)
{
        return pending_from(tree_next(&m->by_name));
}

const struct desired_model *desired_after(const struct desired *d, enum desired_origin origin, unsigned priority,
                                          uint64_t sequence)
{
        const struct place next = {origin, priority, sequence + 1};
        return tree_item(tree_from(&d->models, &next, compare_with_place), const struct desired_model, in_order);
}

size_t desired_count(const struct desired *d, enum desired_origin origin)
{
        size_t n = 0;
        for (enum desired_state state = 0; state < DESIRED_STATES; state++)
                n += d->n_in_state[origin][state];
        return n - d->n_in_state[origin][DESIRED_CANCELLED] - d->n_in_state[origin][DESIRED_UNLOADED];
}

bool desired_pending(const struct desired *d, enum desired_origin origin)
{
        return desired_count(d, origin) > d->n_in_state[origin][DESIRED_READY];
}

bool desired_failed(const struct desired_model *m)
{
        return m->state == DESIRED_GIVEN_UP || m->state == DESIRED_CANCELLED ||
               (m->state == DESIRED_WAITING && m->error.code != 0);
}

bool desired_dismissed(const struct desired_model *m)
{
        return m->state == DESIRED_CANCELLED || m->state == DESIRED_UNLOADED;
}

const char *desired_state_name(const struct desired_model *m)
{
        return desired_dismissed(m)          ? "unloaded"
               : desired_failed(m)           ? "failed"
               : m->state == DESIRED_READY   ? "ready"
               : m->state == DESIRED_WAITING ? "waiting"
                                             : "loading";
}

void desired_title(char out[REDACTED_SOURCE], const struct desired_model *m)
{
        if (m->named)
                snprintf(out, REDACTED_SOURCE, "%s", m->spec.name);
        else
                redact_source(out, m->spec.source);
}

/* ---- requests of clients ---- */

/* Ranks are useful only together. */
static bool forget_on_consume(struct desired_model *m, const struct device *device)
{
        bool *pin = find_pin(m, device);
        if (pin == NULL)
                return false;
        *pin = false;
        if (m->spec.ranks)
                set_pins(m, false);
        rows_due(m);
        bool left = false;
        for (size_t i = 0; i < m->spec.n_devices; i++)
                left = left || m->spec.devices[i].pinned;
        if (left)
                notify(m);
        else if (m->origin == DESIRED_RESTORED || !is_in_progress(m))
                settle_consume(m, m->served);
        return true;
}

bool desired_forget(struct desired *d, const char *name, const char *device_name)
{
        const struct device *device =
                device_name != NULL ? resident_device(d->loads->resident, device_name, NULL) : NULL;
        bool found = false;
        if (device_name != NULL && device == NULL)
                return false;
        each_named(m, d, name)
        {
                if (!is_pending(m))
                        continue;
                if (device != NULL) {
                        found |= forget_on_consume(m, device);
                } else if (m->origin == DESIRED_RESTORED || !is_in_progress(m)) { /* else `cancel` ends its load */
                        settle_consume(m, false);
                        found = true;
                }
        }
        return found;
}

bool desired_pin(struct desired *d, const char *name, bool pin)
{
        bool found = false;
        each_named(m, d, name)
        {
                if (!is_pending(m))
                        continue;
                m->spec.settings.pinned = pin;
                d->n_changes++;
                if (m->origin == DESIRED_RESTORED && !pin)
                        settle_consume(m, false);
                found = true;
        }
        return found;
}

bool desired_set_keep_alive(struct desired *d, const char *name, uint64_t keep_alive_ns)
{
        bool found = false;
        each_named(m, d, name)
        {
                if (!is_pending(m))
                        continue;
                m->spec.settings.keep_alive_ns = keep_alive_ns;
                d->n_changes++;
                rows_due(m);
                found = true;
        }
        return found;
}

bool desired_set_priority(struct desired *d, const char *name, unsigned priority)
{
        bool found = false;
        each_named(m, d, name)
        {
                if (!is_pending(m))
                        continue;
                found = true;
                if (m->spec.settings.priority == priority)
                        continue;
                leave(m);
                m->spec.settings.priority = priority;
                insert(m);
                notify(m);
        }
        return found;
}
