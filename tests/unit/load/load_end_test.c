/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads that end early: cancelled in each state, failed by memory, storage, changed files, and digests. Blocks in
 * flight complete first; then nothing is leaked.
 */
#include "tests/lib/load_fixture.h"

#include "tests/lib/fuse_file.h"

#include <fcntl.h>

/* In which a load can be held. */
static const enum load_state states[] = {LOAD_OPENING, LOAD_PLANNING, LOAD_QUEUED,   LOAD_ALLOCATING,
                                         LOAD_READING, LOAD_CHECKING, LOAD_COMPARING};

/* ---- cancelling ---- */

CORE_FIXTURE(load_fixture_begin, load_fixture_end);

TEST(a_load_held_in_any_state_continues, EACH(states))
{
        struct watched w;
        load_start_held(&w, small_file("small.safetensors", 1), states[_i]);
        ck_assert(!w.ended);
        ck_assert_ptr_eq(loads_find(&loads, "m"), w.load);
        ck_assert_ptr_null(resident_ready(&resident, "m"));
        load_release_held();
        core_until(w.ended);
        serves_small(w.generation, 1);
}

TEST(cancelling_ends_a_load_at_once_and_frees_its_memory_later, EACH(states))
{
        struct watched w;
        load_start_held(&w, small_file("small.safetensors", 1), states[_i]);
        load_cancel(w.load);
        ck_assert_ptr_null(loads_find(&loads, "m"));
        ck_assert_ptr_nonnull(resident_on(&resident, "m", GENERATION_FAILED, NULL));
        ck_assert_uint_eq(loads.n_running, 0);
        load_cancel(w.load); /* it has ended: nothing */
        ck_assert(!w.ended); /* watchers are not called inside the call */
        ends(&w, LOAD_CANCELLED);
        ck_assert_int_eq(w.error.code, STREAMER_ECANCELED);
        core_settle();
        ck_assert_uint_eq(fake.device.used > 0, states[_i] >= LOAD_QUEUED); /* blocks in flight may be written */
        load_release_held();
        core_until(loads_empty(&loads) && fake.device.used == 0);
        ck_assert_uint_eq(fake.allocs, fake.freed);
        ck_assert_ptr_null(resident_ready(&resident, "m"));
}

TEST(a_name_can_be_loaded_again_while_its_cancelled_load_completes)
{
        struct watched first, second;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&first, path, LOAD_READING);
        load_cancel(first.load);
        load_start(&second, path, "m");
        ck_assert_ptr_ne(second.load, first.load);
        core_settle();
        load_release_held();
        ends(&second, LOAD_READY);
        serves_small(second.generation, 1);
        ck_assert_ptr_null(resident_on(&resident, "m", GENERATION_FAILED, NULL));
}

static char *next_path;
static struct load_request *next_load;
static struct error next_error;

static void ask_for_the_next(struct load_watch *watch, struct load_request *request)
{
        loads_begin(&loads, &(struct load_args){.source = next_path, .name = "next", .caller = &core_caller},
                    &next_load, &next_error);
}

/* As a client whose connection was not read while it waited. */
TEST(all_loads_are_cancelled_and_none_begins_when_the_daemon_ends)
{
        struct watched w, another;
        struct load_watch watch;
        next_path = small_file("next", 2);
        load_start_held(&w, small_file("m", 1), LOAD_READING);
        load_watch(w.request, &watch, ask_for_the_next);
        load_start(&another, small_file("n", 3), "n");
        loads_cancel_all(&loads);
        ck_assert_int_eq((int)w.state, (int)LOAD_CANCELLED);
        ck_assert_int_eq((int)another.state, (int)LOAD_CANCELLED);
        ck_assert_ptr_null(next_load);
        ck_assert_int_eq(next_error.code, STREAMER_ECANCELED);
        load_release_held();
        core_until(loads_empty(&loads));
}

static unsigned reported;

static void count_ends(struct load *load, bool subscribed)
{
        ck_assert_ptr_eq(load->loads, &loads);
        ck_assert(!list_empty(&load->answers));
        reported += subscribed;
}

TEST(an_ended_load_lives_until_its_subscribers_release_it)
{
        struct watched first, second;
        struct load_watch a, b, c;
        loads.ended = count_ends;
        load_start_held(&first, small_file("m", 1), LOAD_READING);
        load_start(&second, small_file("n", 2), "n");
        load_watch(second.request, &c, NULL);
        load_watch(first.request, &a, NULL);
        load_watch(first.request, &b, NULL);
        load_cancel(first.load);
        load_cancel(second.load);
        ck_assert_uint_eq(reported, 0);
        load_release_held();
        core_until(first.ended && second.ended);
        core_settle();
        ck_assert_uint_eq(reported, 2);
        ck_assert(!loads_empty(&loads));
        ck_assert_ptr_eq(a.request, first.request);
        ck_assert_int_eq((int)load_request_state(a.request), (int)LOAD_CANCELLED);
        ck_assert_uint_lt(a.request->end_number, c.request->end_number);
        load_unwatch(&a);
        core_settle();
        ck_assert_ptr_eq(b.request, first.request);
        load_unwatch(&b);
        load_unwatch(&c);
        ck_assert(!loads_empty(&loads)); /* not inside the call */
        core_until(loads_empty(&loads));
}

static struct load_watch subscription;

static void release_subscription(struct load *load, bool subscribed)
{
        ck_assert_ptr_eq(load->loads, &loads);
        ck_assert(subscribed);
        load_unwatch(&subscription);
}

/* A resident model is opened again: nothing is in flight, so the end itself has the last reference to the load. */
TEST(a_load_whose_last_subscriber_is_notified_when_it_ends_is_freed_once)
{
        struct watched w;
        char *path = small_file("m", 1);
        struct generation *resident_one = load_ready(path, "m");
        core_until(loads_empty(&loads));
        load_start(&w, path, "m");
        load_watch(w.request, &subscription, NULL);
        loads.ended = release_subscription;
        ends(&w, LOAD_READY);
        ck_assert_ptr_eq(w.generation, resident_one);
        core_until(loads_empty(&loads));
        ck_assert_ptr_null(subscription.request);
        serves_small(resident_one, 1);
}

/* Its subscribers may have disconnected in the turn in which it ended. */
TEST(a_subscriber_that_leaves_before_watchers_are_called_is_forgotten)
{
        struct watched w;
        loads.ended = count_ends;
        load_start_held(&w, small_file("m", 1), LOAD_READING);
        load_watch(w.request, &subscription, NULL);
        load_cancel(w.load);
        load_unwatch(&subscription);
        load_release_held();
        core_until(loads_empty(&loads));
        ck_assert(w.ended);
        ck_assert_uint_eq(reported, 0);
}

static struct fuse_file hang;
static const char *no_hang;

/* The mount precedes everything that is opened or started later and must see it. */
static void begin_hang(void)
{
        no_hang = fuse_file_unavailable();
        if (no_hang == NULL)
                fuse_file_start(&hang, suite_path("hang-%d", (int)getpid()), "f.safetensors",
                                blocks_file("backing.safetensors", 4));
        load_fixture_begin();
}

static void end_hang(void)
{
        load_fixture_end();
        if (no_hang == NULL)
                fuse_file_stop(&hang);
}

static const uint64_t held[] = {0 /* its header */, 2 * BLOCK /* its data */};

CORE_FIXTURE(begin_hang, end_hang);

TEST(a_load_whose_storage_hangs_can_be_cancelled, EACH(held))
{
        struct watched w;
        if (no_hang != NULL)
                SKIP(no_hang);
        fuse_file_hold(&hang, held[_i]);
        load_start(&w, hang.path, "m");
        core_until(w.load->state == (_i == 0 ? LOAD_PLANNING : LOAD_READING));
        fuse_file_wait_held(&hang);
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        core_settle();
        ck_assert(!loads_empty(&loads));
        fuse_file_release(&hang);
        core_until(loads_empty(&loads) && fake.device.used == 0);
}

/* ---- failures ---- */

CORE_FIXTURE(load_fixture_begin, load_fixture_end);

TEST(a_failed_allocation_frees_the_others, .from = 1, .to = 5)
{
        struct watched w;
        fake.device.layout.max_segment = 2 * MiB;
        fake.fail_alloc = (unsigned)_i;
        load_start(&w, blocks_file("blocks.safetensors", 4), "m");
        ends(&w, LOAD_FAILED);
        ck_assert_int_eq(w.error.code, STREAMER_ENOMEM);
        core_until(loads_empty(&loads) && fake.device.used == 0);
        ck_assert_uint_eq(fake.freed, (unsigned)_i - 1);
        ck_assert_str_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL)->error->text, w.error.text);
}

TEST(out_of_memory_during_reading_fails_the_load)
{
        fake.fail_prepare = 3;
        load_fails(blocks_file("blocks.safetensors", 6), "m", STREAMER_ENOMEM, "no memory at");
        core_until(loads_empty(&loads) && fake.device.used == 0);
}

static char *replaced_path;
static uint64_t n_replaced;

/* Another file with the same name, and the model of the next seed. */
static void replace_file(void)
{
        must(rename(small_file("new.safetensors", 2 + n_replaced++), replaced_path));
}

TEST(a_file_that_is_replaced_while_it_is_read_is_loaded_again)
{
        struct watched w;
        replaced_path = small_file("small.safetensors", 1);
        load_start_held(&w, replaced_path, LOAD_READING);
        const struct settings_change change = {SETTING_PINNED | SETTING_PRIORITY, {.pinned = true, .priority = 90}};
        struct error error;
        ck_assert_int_eq(loads_change_settings(&loads, "m", false, 0, true, &change, &error), 1);
        replace_file();
        load_release_held();
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.progress.restarts, 1);
        ck_assert(resident_ready(&resident, "m")->settings.pinned);
        ck_assert_uint_eq(resident_ready(&resident, "m")->settings.priority, 90);
        serves_small(resident_ready(&resident, "m"), 2);
        ck_assert_ptr_null(resident_on(&resident, "m", GENERATION_FAILED, NULL));
        ck_assert_uint_eq(loads.n_running, 0);
}

static void replace_on_arrival(struct loads *the_loads, struct generation *generation)
{
        replace_file();
}

/* The file of doctor's probe is nobody's model. */
TEST(a_probe_of_a_file_that_is_replaced_is_not_begun_again)
{
        struct watched w;
        replaced_path = small_file("small.safetensors", 1);
        loads.arrived = replace_on_arrival;
        ask_for(&w, (struct load_args){.source = replaced_path, .name = PROBE_SCHEME "x", .probe = true});
        ends(&w, LOAD_FAILED);
        ck_assert_uint_eq(w.progress.restarts, 0);
        ck_assert_uint_eq(loads.n_running, 0);
}

/* Before each check. */
TEST(a_file_that_is_replaced_each_time_fails_the_load)
{
        struct watched w;
        replaced_path = small_file("small.safetensors", 1);
        loads.arrived = replace_on_arrival;
        load_start(&w, replaced_path, "m");
        ends(&w, LOAD_FAILED);
        ck_assert_uint_eq(w.progress.restarts, LOAD_RESTARTS);
        ck_assert_ptr_nonnull(strstr(w.error.text, "changed while it was read"));
        ck_assert_ptr_null(resident_ready(&resident, "m"));
}

TEST(a_cancel_ends_a_load_that_has_begun_again)
{
        struct watched w;
        replaced_path = small_file("small.safetensors", 1);
        load_start_held(&w, replaced_path, LOAD_READING);
        replace_file();
        load_release_held();
        core_until(w.request->load != w.load || w.ended);
        ck_assert(!w.ended);
        load_cancel(w.request->load);
        ends(&w, LOAD_CANCELLED);
}

/* ---- samples of resident bytes ---- */

/* Loop test: in place, and through slots. */
TEST(a_load_whose_resident_bytes_differ_fails_and_its_pages_are_distrusted, .to = 2)
{
        fake.hidden = _i == 1;
        if (fake.hidden)
                fake.device.layout = (struct plan_layout){.page = 0, .align = 256, .granularity = 2 * MiB};
        __atomic_store_n(&fake.lies, true, __ATOMIC_RELAXED);
        load_fails(small_file("small.safetensors", 1), "m", STREAMER_EFAILED, "are not those that were read");
        ck_assert_uint_eq(fake.distrusted, 1);
        core_until(loads_empty(&loads) && fake.device.used == 0);
        __atomic_store_n(&fake.lies, false, __ATOMIC_RELAXED);
        serves_small(load_ready(suite_path("small.safetensors"), "m"), 1);
}

TEST(a_device_without_an_interval_is_not_sampled)
{
        fake.device.sample_interval = 0;
        __atomic_store_n(&fake.lies, true, __ATOMIC_RELAXED);
        load_ready(small_file("small.safetensors", 1), "m");
        ck_assert_uint_eq(fake.distrusted, 0);
}

/* ---- published digests ---- */

static const char *const shards[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

static char *published(const char *name)
{
        struct model *m = small_model(3);
        char *folder = suite_path("%s", name);
        model_write_sharded(m, folder, 2, true);
        publish_sums(folder, shards, 2);
        return folder;
}

TEST(a_file_without_a_published_digest_cannot_be_verified)
{
        struct watched w;
        ask_for(&w, (struct load_args){.source = small_file("unpublished.safetensors", 1), .sha256 = true});
        ends(&w, LOAD_FAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, "unpublished.safetensors"));
}

TEST(a_verified_model_without_bytes_is_ready)
{
        struct watched w;
        struct model *m = model_new(1);
        char *folder = suite_path("empty");
        mkdir(folder, 0755);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        char *path = format_text("%s/only.safetensors", folder);
        model_write(m, path);
        publish_sums(folder, (const char *const[]){"only.safetensors"}, 1);
        ask_for(&w, (struct load_args){.source = path, .sha256 = true});
        ends(&w, LOAD_READY);
        serves(w.generation, m);
}

/* A model that was not verified does not satisfy a load that must be verified. */
TEST(an_unverified_model_does_not_satisfy_a_verified_load)
{
        struct watched w;
        char *folder = published("again");
        struct generation *plain = load_ready(folder, "m");
        uint64_t number = plain->number;
        ask_for(&w, (struct load_args){.source = folder, .sha256 = true});
        ends(&w, LOAD_READY);
        ck_assert_uint_ne(w.generation->number, number);
        ck_assert(w.generation->verified);
        struct generation *verified = w.generation;
        ck_assert_ptr_eq(load_ready(folder, "m"), verified); /* the other way round it does */
}

TEST(a_verified_load_does_not_join_an_unverified_one)
{
        struct watched a, b;
        char *folder = published("beside");
        load_start_held(&a, folder, LOAD_READING);
        ask_for(&b, (struct load_args){.source = folder, .sha256 = true});
        ck_assert_ptr_ne(a.load, b.load);
        load_release_held();
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
        ck_assert(b.generation->verified);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), b.generation);
}
