/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned models that an earlier run knew: they are tried until they are there or nobody wants them any
 * more. Each turn of the clock is the test's.
 */
#include "tests/lib/loading.h"

#include "daemon/base/util.h"
#include "daemon/resident/remember.h"
#include "daemon/serve/again.h"

#include <string.h>
#include <sys/stat.h>

#define FAR (UINT64_MAX / 2) /* a time at which everything is due */
#define SECOND UINT64_C(1000000000)

static struct again again;
static struct state state;
static unsigned told;

static void on_changed(struct again *a)
{
        ck_assert_ptr_eq(a, &again);
        told++;
}

static struct state_model *knew(const char *name, const char *path, const char *const *on, size_t n)
{
        struct state_model *m = state_add(&state, name, path);
        ck_assert_int_eq(origin_init(&m->origin, 0, 0, NULL, 0, NULL), 0);
        for (size_t i = 0; i < n; i++)
                ck_assert_int_eq(state_add_device(m, on[i], true), 0);
        m->priority = PROTO_PRIORITY_DEFAULT;
        return m;
}

/* What was known is there; the loop stands. */
static void start_again(void)
{
        struct error error;
        msgpack_sbuffer bytes;
        char *folder = suite_path("state-%d", (int)getpid());
        mkdir(folder, 0700);
        ck_assert_int_eq(state_pack(&state, &bytes), 0);
        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        msgpack_sbuffer_destroy(&bytes);
        state_deinit(&state);
        again_init(&again, &loads, &resident, folder);
        again.changed = on_changed;
}

static void begin(void)
{
        loading_begin_several();
        for (size_t i = 0; i < 1 + OTHERS; i++)
                snprintf(devices[i]->uuid, sizeof(devices[i]->uuid), "uuid-%zu", i);
        state = (struct state){0};
        told = 0;
}

static void end(void)
{
        again_deinit(&again);
        loading_end();
}

static void wanted(struct wanted *w)
{
        ck_assert_uint_eq(again_left(&again), 1);
        again_wanted(&again, 0, w);
}

/* One more try, to its end. */
static void try_once(void)
{
        again_tick(&again, FAR);
        core_until(loads_empty(&loads));
}

static char *nowhere(void)
{
        return suite_path("nowhere.safetensors");
}

#define ONE_DEVICE (const char *const[]){"uuid-0"}, 1
#define TWO_DEVICES (const char *const[]){"uuid-1", "uuid-2"}, 2

START_TEST(one_that_fails_is_tried_again_for_ever_with_a_pause_of_five_minutes_at_most)
{
        struct wanted w;
        knew("m", nowhere(), ONE_DEVICE);
        start_again();
        wanted(&w);
        ck_assert(!w.failed && w.pinned);
        ck_assert_uint_eq(w.tries, 0);
        for (unsigned i = 1; i <= 70; i++) {
                uint64_t before = now_ns(), pause = i < 10 ? SECOND << (i - 1) : 300 * SECOND;
                try_once();
                wanted(&w);
                ck_assert(w.failed);
                ck_assert_uint_eq(w.tries, i);
                ck_assert_uint_eq(told, i);
                ck_assert_ptr_nonnull(strstr(w.error, "nowhere.safetensors"));
                ck_assert_uint_ge(w.retry_at_ns, before + pause);
                ck_assert_uint_le(w.retry_at_ns, now_ns() + pause);
        }
        small_file("nowhere.safetensors", 1);
        try_once();
        ck_assert_uint_eq(again_left(&again), 0);
        serves_small(resident_ready(&resident, "m"), 1);
        ck_assert(resident_ready(&resident, "m")->pinned);
        unlink(nowhere());
}
END_TEST

START_TEST(it_is_not_begun_before_its_pause_is_over)
{
        struct wanted w;
        knew("m", nowhere(), ONE_DEVICE);
        start_again();
        try_once();
        wanted(&w);
        again_tick(&again, w.retry_at_ns - 1);
        ck_assert(loads_empty(&loads));
        again_tick(&again, w.retry_at_ns);
        ck_assert(!loads_empty(&loads));
        core_until(loads_empty(&loads));
}
END_TEST

static char asked[128][8];
static size_t n_asked;

/* All that their users may have is under way. */
static int refuse(struct again *a, struct load_request *request, struct user_limits *user_limits, struct error *error)
{
        (void)a;
        (void)user_limits;
        snprintf(asked[n_asked++ % ARRAY_SIZE(asked)], sizeof(asked[0]), "%s", request->name);
        return error_set(error, STREAMER_ELIMIT, "enough");
}

/* Each has had its turn before the first has another. */
START_TEST(only_so_many_are_begun_in_one_turn_and_the_others_in_the_next)
{
        enum { MODELS = 100, TURN = 32 };
        char name[8];
        for (unsigned i = 0; i < MODELS; i++) {
                snprintf(name, sizeof(name), "m%02u", i);
                knew(name, nowhere(), ONE_DEVICE);
        }
        start_again();
        again.allow = refuse;
        uint64_t now = now_ns();
        for (size_t i = 1; i * TURN <= MODELS; i++) {
                again_tick(&again, now);
                ck_assert_uint_eq(n_asked, i * TURN);
        }
        again_tick(&again, now);
        again_tick(&again, now);
        ck_assert_uint_eq(n_asked, MODELS);
        for (size_t i = 0; i < MODELS; i++)
                for (size_t k = 0; k < i; k++)
                        ck_assert_str_ne(asked[i], asked[k]);
        again_tick(&again, now_ns() + 2 * SECOND);
        ck_assert_uint_eq(n_asked, MODELS + TURN);
        ck_assert_uint_eq(again_left(&again), MODELS);
}
END_TEST

START_TEST(a_replica_that_fails_alone_is_tried_again_alone)
{
        struct wanted w;
        char *path = small_file("small.safetensors", 1);
        others[1].fail_alloc = 1;
        knew("m", path, TWO_DEVICES);
        start_again();
        try_once();
        wanted(&w);
        ck_assert(w.failed);
        ck_assert_ptr_nonnull(strstr(w.error, "fails"));
        others[1].fail_alloc = 0;
        try_once();
        ck_assert_uint_eq(again_left(&again), 0);
        serves_small(resident_on(&resident, "m", GENERATION_READY, devices[1]), 1);
        serves_small(resident_on(&resident, "m", GENERATION_READY, devices[2]), 1);
        ck_assert_uint_eq(others[0].allocs, 1);
}
END_TEST

static bool is_on(size_t device)
{
        return resident_on(&resident, "m", GENERATION_READY, devices[device]) != NULL;
}

START_TEST(a_replica_that_was_not_pinned_is_not_loaded_again)
{
        struct state_model *m = knew("m", small_file("small.safetensors", 1), TWO_DEVICES);
        m->pins[0] = false;
        start_again();
        ck_assert(!again_forget(&again, "m", "one")); /* it was not wanted there */
        try_once();
        ck_assert_uint_eq(again_left(&again), 0);
        ck_assert(!is_on(1) && is_on(2));
        ck_assert(resident_on(&resident, "m", GENERATION_READY, devices[2])->pinned);
}
END_TEST

START_TEST(a_replica_that_is_there_is_pinned_as_it_was)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        knew("m", path, TWO_DEVICES)->pins[0] = false;
        int r = load_request(&w, &(struct load_request){.source = path,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"uuid-1"},
                                                        .n_devices = 1,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(w.ended);
        start_again();
        try_once();
        ck_assert(is_on(1) && is_on(2));
        ck_assert(!resident_on(&resident, "m", GENERATION_READY, devices[1])->pinned);
        ck_assert_int_eq(state_of(&state, &resident), 0);
        ck_assert_uint_eq(state.models[0].n_devices, 2);
        ck_assert_str_eq(state.models[0].devices[0], "uuid-1");
        ck_assert(!state.models[0].pins[0] && state.models[0].pins[1]);
        state_deinit(&state);
}
END_TEST

/* What is there of it does not make the file forget the rest. */
START_TEST(a_replica_that_is_wanted_still_is_written_beside_one_that_is_there)
{
        struct remember remember;
        struct error error;
        char *folder = suite_path("written-%d", (int)getpid());
        mkdir(folder, 0700);
        others[1].fail_alloc = 1;
        knew("m", small_file("small.safetensors", 1), TWO_DEVICES);
        start_again();
        try_once();
        ck_assert(is_on(1) && !is_on(2));
        remember_init(&remember, &resident, loads.pool, folder, &again.state);
        remember_tick(&remember);
        core_until(remember_idle(&remember));
        remember_deinit(&remember);
        ck_assert_int_eq(state_load(&state, folder, &error), 0);
        ck_assert_uint_eq(state.n, 1);
        ck_assert_uint_eq(state.models[0].n_devices, 2);
        ck_assert(state.models[0].pins[0] && state.models[0].pins[1]);
        state_deinit(&state);
        others[1].fail_alloc = 0;
}
END_TEST

START_TEST(a_load_that_is_cancelled_is_not_tried_again)
{
        knew("m", small_file("small.safetensors", 1), ONE_DEVICE);
        start_again();
        again_tick(&again, FAR);
        load_cancel(loads_find(&loads, "m"));
        core_until(loads_empty(&loads));
        ck_assert_uint_eq(again_left(&again), 0);
}
END_TEST

/* Before its first try, between two, and while it is under way, which goes on. */
START_TEST(what_nobody_wants_any_more_is_forgotten)
{
        knew("m", nowhere(), ONE_DEVICE);
        start_again();
        if (_i == 1)
                try_once();
        if (_i == 2)
                again_tick(&again, FAR);
        ck_assert(!again_forget(&again, "other", NULL));
        ck_assert(again_forget(&again, "m", NULL));
        ck_assert_uint_eq(again_left(&again), 0);
        ck_assert(!again_forget(&again, "m", NULL));
        ck_assert(!again.state.models[0].pinned);
        try_once();
        ck_assert_uint_eq(again_left(&again), 0);
}
END_TEST

START_TEST(a_device_that_is_not_wanted_any_more_leaves_the_others)
{
        char *path = small_file("small.safetensors", 1);
        knew("m", path, TWO_DEVICES);
        start_again();
        ck_assert(!again_forget(&again, "m", "three"));
        ck_assert(again_forget(&again, "m", "two"));
        ck_assert_uint_eq(again_left(&again), 1);
        try_once();
        ck_assert_uint_eq(again_left(&again), 0);
        ck_assert_ptr_nonnull(resident_on(&resident, "m", GENERATION_READY, devices[1]));
        ck_assert_ptr_null(resident_on(&resident, "m", GENERATION_READY, devices[2]));
}
END_TEST

START_TEST(a_priority_that_is_raised_goes_first)
{
        char *path = nowhere();
        knew("first", path, ONE_DEVICE);
        knew("second", path, ONE_DEVICE);
        start_again();
        ck_assert(again_set_priority(&again, "second", 900));
        ck_assert(!again_set_priority(&again, "third", 900));
        loads.max_running = 1;
        again_tick(&again, FAR);
        ck_assert_ptr_nonnull(loads_find(&loads, "second"));
        ck_assert_ptr_null(loads_find(&loads, "first"));
        core_until(loads_empty(&loads));
        again_stop(&again);
}
END_TEST

int main(void)
{
        suite_begin("pinned models again");
        TCase *t = core_group("tries", begin, end);
        tcase_add_test(t, one_that_fails_is_tried_again_for_ever_with_a_pause_of_five_minutes_at_most);
        tcase_add_test(t, it_is_not_begun_before_its_pause_is_over);
        tcase_add_test(t, only_so_many_are_begun_in_one_turn_and_the_others_in_the_next);
        tcase_add_test(t, a_replica_that_fails_alone_is_tried_again_alone);
        tcase_add_test(t, a_replica_that_was_not_pinned_is_not_loaded_again);
        tcase_add_test(t, a_replica_that_is_there_is_pinned_as_it_was);
        tcase_add_test(t, a_replica_that_is_wanted_still_is_written_beside_one_that_is_there);
        tcase_add_test(t, a_load_that_is_cancelled_is_not_tried_again);
        tcase_add_loop_test(t, what_nobody_wants_any_more_is_forgotten, 0, 3);
        tcase_add_test(t, a_device_that_is_not_wanted_any_more_leaves_the_others);
        tcase_add_test(t, a_priority_that_is_raised_goes_first);
        return suite_run();
}
