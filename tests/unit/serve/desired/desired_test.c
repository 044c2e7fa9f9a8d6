/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned models of an earlier run are retried until they are ready or no longer desired. The test sets the time.
 */
#include "tests/lib/load_fixture.h"
#include "tests/lib/snapshots.h"

#include "daemon/serve/desired/desired.h"

#include <limits.h>

#define FAR (UINT64_MAX / 2) /* a time at which everything is due */

static const struct limits desired_limits = {.preload_loads = 1, .preload_retry_ns = SECOND};
static struct desired desired;
static struct snapshot state;
static unsigned n_notified;
static char notified[32]; /* the last one's name */

static void on_changed(struct desired *d, const char *name)
{
        ck_assert_ptr_eq(d, &desired);
        snprintf(notified, sizeof(notified), "%s", name);
        n_notified++;
}

/* Pinned on each of the devices. The first row. */
static struct name_row *knew(const char *name, const char *path, const char *const *on, size_t n)
{
        size_t first = state.n_rows;
        for (size_t i = 0; i < n; i++)
                snapshot_add(&state,
                             &(struct name_row){.name = (char *)(uintptr_t)name,
                                                .source = (char *)(uintptr_t)path,
                                                .device = (char *)(uintptr_t)on[i],
                                                .loadable = true,
                                                .settings = {.priority = PROTO_PRIORITY_DEFAULT, .pinned = true}});
        return &state.rows[first];
}

/* What the next snapshot has of models that are not resident. */
static struct snapshot *rows_written;

static void add_row(struct desired *d, const char *name, const char *device)
{
        struct name_row row;
        if (desired_row(d, name, device, &row))
                snapshot_add(rows_written, &row);
}

static struct snapshot written(void)
{
        struct snapshot rows = {0};
        rows_written = &rows;
        desired.row_due = add_row;
        desired_mark(&desired);
        desired.row_due = NULL;
        return rows;
}

/* The loop does not run. */
static void restart(void)
{
        desired_init(&desired, &loads, &desired_limits);
        desired.changed = on_changed;
        desired_restore(&desired, &state);
        snapshot_deinit(&state);
}

static void begin(void)
{
        load_fixture_begin_multi();
        for (size_t i = 0; i < 1 + OTHERS; i++)
                snprintf(devices[i]->uuid, sizeof(devices[i]->uuid), "uuid-%zu", i);
        state = (struct snapshot){0};
        n_notified = 0;
}

static void end(void)
{
        desired_deinit(&desired);
        load_fixture_end();
}

static const struct desired_model *the_model(void)
{
        ck_assert_uint_eq(desired.models.n, 1);
        return container_of(tree_first(&desired.models), struct desired_model, in_order);
}

/* One more try, to its end. */
static void try_once(void)
{
        desired_tick(&desired, FAR);
        core_until(loads_empty(&loads));
}

static char *nowhere(void)
{
        return suite_path("nowhere.safetensors");
}

static struct generation *ready_on(size_t device)
{
        return resident_on(&resident, "m", GENERATION_READY, devices[device]);
}

#define ONE_DEVICE (const char *const[]){"uuid-0"}, 1
#define TWO_DEVICES (const char *const[]){"uuid-1", "uuid-2"}, 2

CORE_FIXTURE(begin, end);

TEST(a_failure_is_retried_for_ever_at_most_five_minutes_apart)
{
        const struct desired_model *m;
        knew("m", nowhere(), ONE_DEVICE);
        restart();
        m = the_model();
        ck_assert(!desired_failed(m) && m->spec.settings.pinned);
        ck_assert_uint_eq(m->attempts, 0);
        for (unsigned i = 1; i <= 70; i++) {
                uint64_t before = now_ns(), pause = i < 10 ? SECOND << (i - 1) : 300 * SECOND;
                try_once();
                m = the_model();
                ck_assert(desired_failed(m));
                ck_assert_uint_eq(m->attempts, i);
                ck_assert_uint_eq(n_notified, i);
                ck_assert_str_eq(notified, "m");
                ck_assert_ptr_nonnull(strstr(m->error.text, "nowhere.safetensors"));
                ck_assert_uint_ge(m->retry_at_ns, before + pause);
                ck_assert_uint_le(m->retry_at_ns, now_ns() + pause);
        }
        small_file("nowhere.safetensors", 1);
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        serves_small(resident_ready(&resident, "m"), 1);
        ck_assert(resident_ready(&resident, "m")->settings.pinned);
        unlink(nowhere());
}

TEST(a_retry_does_not_begin_before_its_delay)
{
        const struct desired_model *m;
        knew("m", nowhere(), ONE_DEVICE);
        restart();
        try_once();
        m = the_model();
        desired_tick(&desired, m->retry_at_ns - 1);
        ck_assert(loads_empty(&loads));
        desired_tick(&desired, m->retry_at_ns);
        ck_assert(!loads_empty(&loads));
        core_until(loads_empty(&loads));
}

/* A name of the Hub, looked up while inspections of the machine hang. */
TEST(a_name_of_the_hub_does_not_wait_for_doctors)
{
        static const char commit[] = "0123456789012345678901234567890123456789";
        struct gate gate;
        struct held_work doctors[4];
        struct model_record entry = {.source = strdup("org/tiny")};
        struct error error = {0};
        char *snapshot = format_text("models--org--tiny/snapshots/%s", commit);
        file_put(suite_folder(), "models--org--tiny/refs/main", commit);
        file_put(suite_folder(), format_text("%s/config.json", snapshot), "{}");
        small_file(format_text("%s/model.safetensors", snapshot), 1);
        must(setenv("HF_HUB_CACHE", suite_folder(), 1));
        gate_init(&gate, false);
        for (size_t i = 0; i < ARRAY_SIZE(doctors); i++)
                held_work_submit(&doctors[i], loads.pool, WORK_LANE_INSPECT, &gate);
        ck_assert_int_eq(model_record_add_device(&entry, "uuid-0", false), 0);
        desired_init(&desired, &loads, &desired_limits);
        ck_assert_int_eq(desired_configure(&desired, &entry, 1, &error), 0);
        desired_tick(&desired, FAR);
        core_until(resident_ready(&resident, "org/tiny") != NULL);
        gate_open(&gate);
        core_until(doctors[0].done && doctors[1].done && doctors[2].done && doctors[3].done);
        core_until(loads_empty(&loads));
}

/* Its device is not configured any more. The snapshot still has the model, and a reload retries it. */
TEST(a_permanent_error_is_not_retried_before_a_reload)
{
        struct error error;
        knew("m", small_file("small.safetensors", 1), (const char *const[]){"uuid-none"}, 1);
        restart();
        try_once();
        const struct desired_model *m = the_model();
        ck_assert(desired_failed(m) && m->state == DESIRED_GIVEN_UP && m->retry_at_ns == 0);
        try_once();
        ck_assert_uint_eq(m->attempts, 1);
        const struct snapshot rows = written();
        ck_assert(snapshot_find(&rows, "m")->settings.pinned);
        ck_assert_int_eq(desired_configure(&desired, NULL, 0, &error), 0);
        ck_assert(!desired_failed(m));
        try_once();
        ck_assert_int_eq(the_model()->state, DESIRED_GIVEN_UP);
}

static char asked[128][8];
static size_t n_asked;

/* All that their users may have is under way. */
static int refuse(struct desired *d, struct load_args *request, struct quota_limits *quota_limits, struct error *error)
{
        snprintf(asked[n_asked++ % ARRAY_SIZE(asked)], sizeof(asked[0]), "%s", request->name);
        return error_set(error, STREAMER_ELIMIT, "enough");
}

/* Each has had its turn before the first has another. */
TEST(each_iteration_begins_a_bounded_number_of_loads)
{
        enum { MODELS = 100, TURN = 32 };
        char name[8];
        for (unsigned i = 0; i < MODELS; i++) {
                snprintf(name, sizeof(name), "m%02u", i);
                knew(name, nowhere(), ONE_DEVICE);
        }
        restart();
        desired.allow = refuse;
        uint64_t now = now_ns();
        for (size_t i = 1; i * TURN <= MODELS; i++) {
                desired_tick(&desired, now);
                ck_assert_uint_eq(n_asked, i * TURN);
        }
        desired_tick(&desired, now);
        desired_tick(&desired, now);
        ck_assert_uint_eq(n_asked, MODELS);
        for (size_t i = 0; i < MODELS; i++)
                for (size_t k = 0; k < i; k++)
                        ck_assert_str_ne(asked[i], asked[k]);
        desired_tick(&desired, now_ns() + 2 * SECOND);
        ck_assert_uint_eq(n_asked, MODELS + TURN);
        ck_assert_uint_eq(desired.models.n, MODELS);
}

static void knew_many(size_t n)
{
        for (size_t i = 0; i < n; i++)
                knew(format_text("m%02zu", i), nowhere(), ONE_DEVICE);
}

/* As many at once as a tick begins. */
static void allow_many_loads(void)
{
        loads.max_running = 2 * DESIRED_RESTORED_AT_ONCE;
}

/* Without a second tick, though each of them fails. */
TEST(the_end_of_an_attempt_begins_the_next)
{
        enum { MODELS = 100 };
        allow_many_loads();
        knew_many(MODELS);
        restart();
        desired_tick(&desired, now_ns());
        ck_assert_uint_eq(desired.due[DESIRED_RESTORED].n, MODELS - DESIRED_RESTORED_AT_ONCE);
        core_until(desired.later.n == MODELS);
        desired_each (m, &desired)
                ck_assert_uint_eq(m->attempts, 1);
}

TEST(restored_models_leave_the_processors_to_other_loads)
{
        enum { MODELS = 100 };
        struct watched w;
        gate_init(&others[0].alloc, false);
        start_on(&w, small_file("small.safetensors", 1), ON("one"), NULL);
        core_until(w.load->state == LOAD_ALLOCATING);
        allow_many_loads();
        knew_many(MODELS);
        restart();
        desired_tick(&desired, now_ns());
        core_until(desired.later.n == DESIRED_RESTORED_AT_ONCE && !desired.start_next.posted);
        ck_assert_uint_eq(desired.due[DESIRED_RESTORED].n, MODELS - DESIRED_RESTORED_AT_ONCE);
        desired_tick(&desired, now_ns());
        core_until(desired.later.n == 2 * DESIRED_RESTORED_AT_ONCE);
        gate_open(&others[0].alloc);
        ends(&w, LOAD_READY);
}

/* What hangs delays the others by some ticks each. */
TEST(a_tick_begins_one_restored_model_at_least)
{
        enum { MODELS = 34 };
        load_hold_lane(nowhere());
        allow_many_loads();
        knew_many(MODELS);
        restart();
        for (size_t n = DESIRED_RESTORED_AT_ONCE; n <= MODELS; n++) {
                ck_assert_uint_eq(desired_tick(&desired, 0) == UINT64_MAX, n == MODELS);
                ck_assert_uint_eq(desired.n_in_state[DESIRED_RESTORED][DESIRED_LOADING], n);
        }
        load_release_held();
        core_until(desired.later.n == MODELS);
}

TEST(configured_models_are_loaded_one_after_the_other)
{
        struct model_record entries[3] = {{.source = nowhere()}, {.source = nowhere()}, {.source = nowhere()}};
        struct error error = {0};
        desired_init(&desired, &loads, &desired_limits);
        for (size_t i = 0; i < ARRAY_SIZE(entries); i++) {
                entries[i].name = format_text("m%zu", i);
                ck_assert_int_eq(model_record_add_device(&entries[i], "uuid-0", false), 0);
        }
        ck_assert_int_eq(desired_configure(&desired, entries, ARRAY_SIZE(entries), &error), 0);
        ck_assert(desired_pending(&desired, DESIRED_CONFIGURED));
        ck_assert_uint_eq(desired_tick(&desired, now_ns()), UINT64_MAX);
        ck_assert_uint_eq(desired.n_in_state[DESIRED_CONFIGURED][DESIRED_LOADING], 1);
        core_until(desired.later.n == ARRAY_SIZE(entries));
        ck_assert_uint_eq(desired_count(&desired, DESIRED_CONFIGURED), ARRAY_SIZE(entries));
}

static void configure_m(void)
{
        struct model_record entry = {.source = small_file("small.safetensors", 1), .name = format_text("m")};
        struct error error = {0};
        ck_assert_int_eq(model_record_add_device(&entry, "uuid-1", false), 0);
        ck_assert_int_eq(model_record_add_device(&entry, "uuid-2", false), 0);
        desired_init(&desired, &loads, &desired_limits);
        ck_assert_int_eq(desired_configure(&desired, &entry, 1, &error), 0);
}

/* "m" is configured, and ready. */
static void preload_m(void)
{
        configure_m();
        try_once();
        desired_name_changed(&desired, "m", false);
        core_until(!desired.check.posted);
        ck_assert_int_eq(the_model()->state, DESIRED_READY);
        ck_assert(!desired_pending(&desired, DESIRED_CONFIGURED));
}

static void lose(size_t device, enum end end)
{
        struct generation *g = ready_on(device);
        end_reason_set(&g->end, end, "why");
        generation_drop_name(g, "m");
        desired_name_changed(&desired, "m", false);
        core_until(!desired.check.posted);
}

static const struct {
        enum end end;
        const char *missing; /* NULL: nobody misses the model */
} lost[] = {{END_EVICTED, "evicted: why"}, {END_DAMAGED, "damaged: why"}, {END_UNLOADED, NULL}, {END_EXPIRED, NULL}};

TEST(a_configured_model_that_was_evicted_is_missing, EACH(lost))
{
        preload_m();
        lose(1, lost[_i].end);
        bool missing = lost[_i].missing != NULL;
        const struct desired_model *m = the_model();
        ck_assert(desired_pending(&desired, DESIRED_CONFIGURED) == missing);
        ck_assert_str_eq(desired_state_name(m), missing ? "failed" : "ready");
        if (missing)
                ck_assert_str_eq(m->error.text, lost[_i].missing);
        else
                lose(2, lost[_i].end);
        ck_assert_str_eq(desired_state_name(m), missing ? "failed" : "unloaded");
        ck_assert(desired_pending(&desired, DESIRED_CONFIGURED) == missing);
        ck_assert_uint_eq(desired_count(&desired, DESIRED_CONFIGURED), missing);
        try_once();
        desired_name_changed(&desired, "m", false);
        core_until(!desired.check.posted);
        ck_assert(!desired_pending(&desired, DESIRED_CONFIGURED));
        ck_assert((ready_on(1) != NULL) == missing && (ready_on(2) != NULL) == missing);
}

/* "m" is not among them. */
static void assert_checked(size_t n)
{
        ck_assert_uint_eq(list_length(&desired.to_check), n);
        core_until(!desired.check.posted);
        ck_assert(list_empty(&desired.to_check));
        ck_assert_int_eq(the_model()->state, DESIRED_READY);
}

TEST(a_change_of_another_name_does_not_concern_a_configured_model)
{
        preload_m();
        desired_name_changed(&desired, "l", true);
        desired_name_changed(&desired, "n", false);
        assert_checked(0);
        desired_name_changed(&desired, "m", true);
        desired_name_changed(&desired, "m", false);
        assert_checked(1);
}

static void drop_m(struct callback *callback)
{
        generation_drop_all(ready_on(1));
        generation_drop_all(ready_on(2));
}

static struct callback dropping = {.run = drop_m};

static void drop_later(struct resident *r, struct generation *g, const char *removed)
{
        if (g->state == GENERATION_READY)
                wake_post(r->wake, &dropping);
}

/* Between the end of its load and the turn of the loop in which that is noticed. */
TEST(a_configured_model_that_is_unloaded_at_once_is_not_ready)
{
        configure_m();
        resident.changed = drop_later;
        try_once();
        core_until(!desired.check.posted);
        ck_assert_int_eq(the_model()->state, DESIRED_UNLOADED);
}

/* By a client, also from another source: it stays. */
TEST(a_configured_model_is_no_more_missing_when_its_name_is_ready)
{
        struct watched w;
        preload_m();
        lose(1, END_EVICTED);
        wait_on(&w, small_file("other.safetensors", 2), "m", ON("one"));
        ends(&w, LOAD_READY);
        desired_name_changed(&desired, "m", false);
        core_until(!desired.check.posted);
        ck_assert_int_eq(the_model()->state, DESIRED_READY);
        try_once();
        serves_small(ready_on(1), 2);
        serves_small(ready_on(2), 1);
}

/* On the device, by a client: that it was evicted there before does not count any more. */
TEST(an_evicted_model_that_is_unloaded_is_not_missing)
{
        preload_m();
        lose(1, END_EVICTED);
        ck_assert(desired_forget(&desired, "m", "one"));
        desired_name_changed(&desired, "m", false);
        core_until(!desired.check.posted);
        ck_assert_int_eq(the_model()->state, DESIRED_READY);
        lose(2, END_EVICTED);
        ck_assert(desired_forget(&desired, "m", NULL));
        ck_assert_str_eq(desired_state_name(the_model()), "unloaded");
        ck_assert(!desired_pending(&desired, DESIRED_CONFIGURED));
}

TEST(the_order_of_models_continues_behind_a_place)
{
        knew("low", nowhere(), ONE_DEVICE)->settings.priority = 1;
        knew("high", nowhere(), ONE_DEVICE)->settings.priority = 900;
        knew("usual", nowhere(), ONE_DEVICE);
        restart();
        static const char *const names[] = {"high", "usual", "low"};
        const struct desired_model *m = desired_after(&desired, DESIRED_RESTORED, UINT_MAX, 0);
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                ck_assert_str_eq(m->spec.name, names[i]);
                m = desired_after(&desired, m->origin, m->spec.settings.priority, m->sequence);
        }
        ck_assert_ptr_null(m);
}

TEST(a_failed_replica_alone_is_retried)
{
        const struct desired_model *m;
        char *path = small_file("small.safetensors", 1);
        others[1].fail_alloc = 1;
        knew("m", path, TWO_DEVICES);
        restart();
        try_once();
        m = the_model();
        ck_assert(desired_failed(m));
        ck_assert_ptr_nonnull(strstr(m->error.text, "fails"));
        others[1].fail_alloc = 0;
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        serves_small(ready_on(1), 1);
        serves_small(ready_on(2), 1);
        ck_assert_uint_eq(others[0].allocs, 1);
}

TEST(an_unpinned_replica_is_not_reloaded)
{
        knew("m", small_file("small.safetensors", 1), TWO_DEVICES)->settings.pinned = false;
        restart();
        ck_assert(!desired_forget(&desired, "m", "one")); /* it was not desired there */
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        ck_assert(!ready_on(1) && ready_on(2));
        ck_assert(ready_on(2)->settings.pinned);
}

TEST(replicas_are_restored_with_their_own_settings)
{
        struct name_row *rows = knew("m", small_file("small.safetensors", 1), TWO_DEVICES);
        rows[0].settings.priority = 55;
        rows[1].settings.priority = 66;
        rows[1].settings.keep_alive_ns = 60 * SECOND;
        restart();
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        const struct model_settings *one = &ready_on(1)->settings, *two = &ready_on(2)->settings;
        ck_assert(one->pinned && one->priority == 55 && one->keep_alive_ns == 0);
        ck_assert(two->pinned && two->priority == 66 && two->keep_alive_ns == 60 * SECOND);
}

TEST(a_resident_replica_gets_its_restored_pin)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        knew("m", path, TWO_DEVICES)->settings.pinned = false;
        start_on(&w, path, ON("uuid-1"), NULL);
        core_until(w.ended);
        restart();
        try_once();
        ck_assert(ready_on(1) && ready_on(2));
        ck_assert(!ready_on(1)->settings.pinned && ready_on(2)->settings.pinned);
        ck_assert_uint_eq(written().n_rows, 0);
}

/* ---- a client loads the name before it is restored ---- */

static char *knew_on_one(const char *file, uint64_t seed)
{
        char *path = small_file(file, seed);
        struct name_row *row = knew("m", path, (const char *const[]){"uuid-1"}, 1);
        row->settings.keep_alive_ns = 60 * SECOND;
        row->settings.priority = 77;
        restart();
        return path;
}

static void assert_restored_settings(void)
{
        const struct model_settings *are = &ready_on(1)->settings;
        ck_assert(are->pinned && are->keep_alive_ns == 60 * SECOND && are->priority == 77);
}

/* Also another source: the settings are the name's. */
TEST(what_a_client_has_loaded_has_the_settings_that_the_name_had, .to = 2)
{
        struct watched w;
        char *path = knew_on_one("small.safetensors", 1);
        start_on(&w, _i == 0 ? path : small_file("other.safetensors", 2), ON("uuid-1"), NULL);
        core_until(w.ended);
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        serves_small(ready_on(1), (uint64_t)_i + 1);
        assert_restored_settings();
}

static void settings_before(const struct loads *of, const char *name, const struct device *device,
                            struct model_settings *settings)
{
        ck_assert_ptr_eq(of, &loads);
        desired_settings(&desired, name, device, settings);
}

/* While it loads, and before the next attempt, which is not waited for. */
TEST(what_a_client_loads_has_the_settings_at_once)
{
        struct watched w;
        knew_on_one("small.safetensors", 1);
        unlink(suite_path("small.safetensors"));
        try_once();
        ck_assert_uint_gt(the_model()->retry_at_ns, now_ns());
        ck_assert(desired_set_keep_alive(&desired, "m", 60 * SECOND));
        ck_assert(!desired_set_keep_alive(&desired, "other", 60 * SECOND));
        loads.desired_settings = settings_before;
        start_on(&w, small_file("other.safetensors", 2), ON("uuid-1"), NULL);
        core_until(w.ended);
        ck_assert_uint_eq(ready_on(1)->settings.priority, 77);
        ck_assert_uint_eq(ready_on(1)->settings.keep_alive_ns, 60 * SECOND);
        desired_name_changed(&desired, "m", true);
        core_until(desired.models.n == 0);
        assert_restored_settings();
        loads.desired_settings = NULL;
}

TEST(the_end_of_a_clients_load_is_waited_for, .to = 2)
{
        struct watched w;
        bool fails = _i == 1;
        char *path = knew_on_one("small.safetensors", 1);
        load_hold_lane(path);
        start_on(&w, path, ON("uuid-1"), NULL);
        desired_tick(&desired, FAR);
        ck_assert_int_eq(the_model()->state, DESIRED_WAITING);
        others[0].fail_alloc = fails ? 1 : 0;
        load_release_held();
        core_until(w.ended && loads_empty(&loads));
        ck_assert((ready_on(1) == NULL) == fails);
        others[0].fail_alloc = 0;
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        assert_restored_settings();
}

/* Another model has their name on one of the devices. */
TEST(ranks_are_loaded_together)
{
        struct watched w;
        struct name_row *rows = knew("m", ranks_folder(2), TWO_DEVICES);
        for (uint32_t i = 0; i < 2; i++) {
                rows[i].rank = i;
                rows[i].n_ranks = 2;
                rows[i].pattern = strdup(RANKS);
        }
        start_on(&w, small_file("small.safetensors", 1), ON("uuid-1"), NULL);
        core_until(w.ended);
        restart();
        try_once();
        ck_assert(ready_on(1)->n_ranks == 2 && ready_on(2)->n_ranks == 2);
}

/* A resident replica does not remove the others from the snapshot. */
TEST(a_desired_replica_is_stored_beside_a_resident_one)
{
        others[1].fail_alloc = 1;
        knew("m", small_file("small.safetensors", 1), TWO_DEVICES);
        restart();
        try_once();
        ck_assert(ready_on(1) && !ready_on(2));
        const struct snapshot rows = written();
        ck_assert_uint_eq(rows.n_rows, 1);
        ck_assert_str_eq(rows.rows[0].device, "uuid-2");
        ck_assert(rows.rows[0].settings.pinned);
        others[1].fail_alloc = 0;
}

TEST(a_cancelled_load_is_not_retried)
{
        knew("m", small_file("small.safetensors", 1), ONE_DEVICE);
        restart();
        desired_tick(&desired, FAR);
        load_cancel(loads_find(&loads, "m"));
        core_until(loads_empty(&loads));
        ck_assert_uint_eq(desired.models.n, 0);
}

/* Before the first attempt, between two, and during a load, which continues. */
TEST(undesired_models_are_removed, .to = 3)
{
        knew("m", nowhere(), ONE_DEVICE);
        restart();
        if (_i == 1)
                try_once();
        if (_i == 2)
                desired_tick(&desired, FAR);
        ck_assert(!desired_forget(&desired, "other", NULL));
        ck_assert(desired_forget(&desired, "m", NULL));
        ck_assert_uint_eq(desired.models.n, 0);
        ck_assert(!desired_forget(&desired, "m", NULL));
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
}

TEST(a_removed_device_does_not_affect_the_others)
{
        char *path = small_file("small.safetensors", 1);
        knew("m", path, TWO_DEVICES);
        restart();
        ck_assert(!desired_forget(&desired, "m", "three"));
        ck_assert(desired_forget(&desired, "m", "two"));
        ck_assert_uint_eq(desired.models.n, 1);
        try_once();
        ck_assert_uint_eq(desired.models.n, 0);
        ck_assert(ready_on(1) && !ready_on(2));
}

TEST(a_raised_priority_is_first)
{
        char *path = nowhere();
        knew("first", path, ONE_DEVICE);
        knew("second", path, ONE_DEVICE);
        restart();
        ck_assert(desired_set_priority(&desired, "second", 900));
        ck_assert(!desired_set_priority(&desired, "third", 900));
        loads.max_running = 1;
        desired_tick(&desired, FAR);
        ck_assert_ptr_nonnull(loads_find(&loads, "second"));
        ck_assert_ptr_null(loads_find(&loads, "first"));
        core_until(loads_empty(&loads));
        desired_close(&desired);
}
