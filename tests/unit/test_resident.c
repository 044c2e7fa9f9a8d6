/* SPDX-License-Identifier: Apache-2.0
 *
 * What is resident: the states of a generation, the names that lead to it, the budget it takes, and
 * the moment when its memory is given back, which is not the moment when it is dropped.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/resident/resident.h"

#include <string.h>

#define BUDGET (64 * MiB)

static struct fake_device fake;
static struct device *devices[2];
static struct resident resident;
static unsigned changes;

static void on_changed(struct resident *r, struct generation *generation)
{
        ck_assert_ptr_eq(r, &resident);
        ck_assert_ptr_nonnull(generation);
        changes++;
}

static void begin(void)
{
        fake_device_init(&fake, "fake", BUDGET, false);
        devices[0] = &fake.device;
        resident_init(&resident, devices, 1, 2);
        resident.changed = on_changed;
}

/* Takes a name from somebody; false: nobody has one. */
static bool drop_one_name(void)
{
        list_each (pos, &resident.generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (list_empty(&g->names))
                        continue;
                char *name = format_text("%s", generation_name(g));
                generation_drop_name(g, name);
                free(name);
                return true;
        }
        return false;
}

/* Whatever a test has left goes as it would in the daemon. */
static void end(void)
{
        while (drop_one_name())
                ;
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(fake.device.used, 0);
        resident_deinit(&resident);
        fake_device_deinit(&fake);
}

/* ---- generations as a load makes them ---- */

static struct generation *loading(const char *name)
{
        struct generation *g = generation_new(&resident, name, "/models/x", &fake.device);
        ck_assert_ptr_nonnull(g);
        generation_assign_number(g);
        return g;
}

/* With memory of its own: a segment, and tables. */
static struct generation *loading_with(const char *name, uint64_t bytes)
{
        struct error error = {0};
        struct generation *g = loading(name);
        ck_assert_int_eq(generation_charge(g, bytes, &error), 0);
        ck_assert_int_eq(fake.device.ops->alloc(&fake.device, bytes, &g->segments[0], &error), 0);
        g->n_segments = 1;
        g->manifest.size = g->arrival.size = 4096;
        ck_assert_int_eq(host_table_new("m", 4096, &g->manifest.fd, &g->manifest.map, &error), 0);
        ck_assert_int_eq(host_table_new("a", 4096, &g->arrival.fd, &g->arrival.map, &error), 0);
        return g;
}

/* The load is done with it. */
static struct generation *ready(struct generation *g)
{
        generation_ready(g);
        generation_unpin(g);
        return g;
}

static struct generation *failed(struct generation *g, const char *text)
{
        struct error error;
        error_set(&error, STREAMER_EFAILED, "%s", text);
        generation_fail(g, &error);
        generation_unpin(g);
        return g;
}

static size_t listed(void)
{
        size_t n = 0;
        list_each (pos, &resident.generations)
                n++;
        return n;
}

/* ---- states ---- */

START_TEST(a_generation_begins_loading_with_one_name_and_one_pin)
{
        struct generation *g = loading("m");
        ck_assert_int_eq((int)g->state, (int)GENERATION_LOADING);
        ck_assert_str_eq(generation_name(g), "m");
        ck_assert_str_eq(g->source, "/models/x");
        ck_assert_uint_eq(g->pins, 1);
        ck_assert_ptr_eq(resident_loading(&resident, "m"), g);
        ck_assert_ptr_eq(resident_any(&resident, "m"), g);
        ck_assert_ptr_null(resident_ready(&resident, "m"));
        ck_assert_ptr_null(resident_any(&resident, "other"));
        ready(g);
}
END_TEST

START_TEST(ready_serves_until_its_last_name_goes)
{
        struct generation *g = ready(loading("m"));
        ck_assert_int_eq((int)g->state, (int)GENERATION_READY);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), g);
        ck_assert_ptr_null(resident_loading(&resident, "m"));
        generation_drop_name(g, "m");
        ck_assert(resident_empty(&resident));
}
END_TEST

START_TEST(what_failed_stays_listed_with_its_reason_until_it_is_unloaded)
{
        struct generation *g = failed(loading("m"), "bad file");
        ck_assert_int_eq((int)g->state, (int)GENERATION_FAILED);
        ck_assert_str_eq(g->error.text, "bad file");
        ck_assert_ptr_eq(resident_failed(&resident, "m"), g);
        ck_assert_ptr_eq(resident_any(&resident, "m"), g);
        generation_drop_name(g, "m");
        ck_assert(resident_empty(&resident));
}
END_TEST

START_TEST(what_was_not_needed_goes_without_a_trace)
{
        struct generation *g = loading("m");
        unsigned before = changes;
        generation_discard(g);
        ck_assert_ptr_null(resident_any(&resident, "m"));
        generation_unpin(g);
        ck_assert(resident_empty(&resident));
        ck_assert_uint_eq(changes, before);
}
END_TEST

START_TEST(what_serves_is_found_before_what_loads_and_what_failed)
{
        struct generation *bad = failed(loading("m"), "bad");
        ck_assert_ptr_eq(resident_any(&resident, "m"), bad);
        struct generation *young = loading("m");
        ck_assert_ptr_eq(resident_any(&resident, "m"), young);
        struct generation *old = loading("m");
        ready(old);
        ck_assert_ptr_eq(resident_any(&resident, "m"), old);
        ready(young);
}
END_TEST

START_TEST(numbers_rise_and_are_not_used_again)
{
        struct generation *a = loading("a"), *b = loading("b");
        ck_assert_uint_lt(a->number, b->number);
        uint64_t last = b->number;
        failed(b, "x");
        generation_drop_name(b, "b");
        struct generation *c = loading("c");
        ck_assert_uint_gt(c->number, last);
        ready(a);
        ready(c);
}
END_TEST

START_TEST(states_have_the_words_of_the_protocol)
{
        ck_assert_str_eq(generation_state_name(GENERATION_LOADING), "loading");
        ck_assert_str_eq(generation_state_name(GENERATION_READY), "ready");
        ck_assert_str_eq(generation_state_name(GENERATION_DRAINING), "draining");
        ck_assert_str_eq(generation_state_name(GENERATION_FAILED), "failed");
}
END_TEST

/* ---- names ---- */

START_TEST(an_alias_leads_to_the_same_generation)
{
        struct generation *g = ready(loading("m"));
        ck_assert_int_eq(generation_add_name(g, "alias"), 0);
        ck_assert_ptr_eq(resident_ready(&resident, "alias"), g);
        ck_assert(generation_has_name(g, "alias"));
        ck_assert(!generation_has_name(g, "alia"));
        generation_drop_name(g, "m");
        ck_assert_int_eq((int)g->state, (int)GENERATION_READY);
        ck_assert_str_eq(generation_name(g), "alias");
        ck_assert_ptr_null(resident_any(&resident, "m"));
        generation_drop_name(g, "alias");
        ck_assert(resident_empty(&resident));
}
END_TEST

START_TEST(dropping_a_name_it_does_not_have_changes_nothing)
{
        struct generation *g = ready(loading("m"));
        generation_drop_name(g, "other");
        ck_assert_int_eq((int)g->state, (int)GENERATION_READY);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), g);
}
END_TEST

START_TEST(a_newer_generation_takes_the_name_over)
{
        struct generation *old = ready(loading("m"));
        struct generation *new = loading("m");
        generation_pin(old); /* somebody looks at it */
        ck_assert_ptr_eq(resident_ready(&resident, "m"), old);
        ready(new);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), new);
        ck_assert_int_eq((int)old->state, (int)GENERATION_DRAINING);
        ck_assert_str_eq(generation_name(old), "m");
        generation_unpin(old);
        ck_assert_uint_eq(listed(), 1);
}
END_TEST

START_TEST(an_alias_keeps_the_old_generation_serving)
{
        struct generation *old = ready(loading("m"));
        generation_add_name(old, "stable");
        struct generation *new = ready(loading("m"));
        ck_assert_ptr_eq(resident_ready(&resident, "m"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "stable"), old);
        ck_assert_int_eq((int)old->state, (int)GENERATION_READY);
}
END_TEST

START_TEST(a_new_generation_takes_all_its_names_over)
{
        ready(loading("a"));
        ready(loading("b"));
        struct generation *new = loading("a");
        generation_add_name(new, "b");
        generation_add_name(new, "c");
        ready(new);
        ck_assert_uint_eq(listed(), 1);
        ck_assert_ptr_eq(resident_ready(&resident, "a"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "b"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "c"), new);
}
END_TEST

START_TEST(a_success_takes_the_failure_of_its_name_away)
{
        failed(loading("m"), "bad");
        struct generation *good = ready(loading("m"));
        ck_assert_ptr_null(resident_failed(&resident, "m"));
        ck_assert_uint_eq(listed(), 1);
        ck_assert_ptr_eq(resident_any(&resident, "m"), good);
}
END_TEST

START_TEST(an_older_one_that_finishes_late_yields)
{
        struct generation *older = loading_with("m", 2 * MiB);
        struct generation *newer = loading("m");
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        ck_assert_int_eq((int)older->state, (int)GENERATION_DRAINING);
        core_until(listed() == 1);
        ck_assert_uint_eq(fake.device.used, 0);
}
END_TEST

START_TEST(one_that_finishes_late_keeps_the_names_nobody_took)
{
        struct generation *older = loading("m");
        generation_add_name(older, "n");
        generation_add_name(older, "o");
        struct generation *newer = loading("m");
        generation_add_name(newer, "o");
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        ck_assert_ptr_eq(resident_ready(&resident, "o"), newer);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), older);
        ck_assert_int_eq((int)older->state, (int)GENERATION_READY);
}
END_TEST

START_TEST(a_load_whose_names_were_all_taken_drains_when_ready)
{
        struct generation *g = loading("m");
        generation_drop_name(g, "m");
        ck_assert_int_eq((int)g->state, (int)GENERATION_LOADING);
        ready(g);
        ck_assert(resident_empty(&resident));
}
END_TEST

START_TEST(a_failure_replaces_the_one_before_it)
{
        failed(loading("m"), "first");
        failed(loading("m"), "second");
        ck_assert_uint_eq(listed(), 1);
        ck_assert_str_eq(resident_failed(&resident, "m")->error.text, "second");
}
END_TEST

START_TEST(a_failure_leaves_what_serves_alone)
{
        struct generation *good = ready(loading("m"));
        failed(loading("m"), "bad");
        ck_assert_ptr_eq(resident_ready(&resident, "m"), good);
        ck_assert_ptr_eq(resident_any(&resident, "m"), good);
        ck_assert_uint_eq(listed(), 2);
}
END_TEST

START_TEST(only_so_many_failures_stay_listed)
{
        failed(loading("a"), "first");
        failed(loading("b"), "second");
        failed(loading("c"), "third");
        ck_assert_uint_eq(listed(), 2);
        ck_assert_ptr_null(resident_any(&resident, "a"));
        ck_assert_ptr_nonnull(resident_failed(&resident, "b"));
        ck_assert_ptr_nonnull(resident_failed(&resident, "c"));
}
END_TEST

START_TEST(failures_that_are_forgotten_may_have_many_names)
{
        struct generation *g = loading("a");
        generation_add_name(g, "a2");
        generation_add_name(g, "a3");
        failed(g, "first");
        failed(loading("b"), "second");
        failed(loading("c"), "third");
        ck_assert_uint_eq(listed(), 2);
        ck_assert_ptr_null(resident_any(&resident, "a3"));
}
END_TEST

/* ---- the same files ---- */

START_TEST(the_same_files_on_the_same_device_are_the_same)
{
        struct source_identity x = {.digest = "x"}, y = {.digest = "y"};
        struct generation *g = loading("m");
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, NULL));
        g->identity = x;
        g->has_identity = true;
        ck_assert_ptr_eq(resident_same(&resident, &x, &fake.device, NULL), g);
        ck_assert_ptr_null(resident_same(&resident, &y, &fake.device, NULL));
        ck_assert_ptr_null(resident_same(&resident, &x, NULL, NULL));
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, g));
        ready(g);
        ck_assert_ptr_eq(resident_same(&resident, &x, &fake.device, NULL), g);
        generation_pin(g);
        generation_drop_name(g, "m");
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, NULL));
        generation_unpin(g);
}
END_TEST

/* ---- devices ---- */

START_TEST(a_device_is_found_by_name_or_uuid_or_by_being_the_only_one)
{
        struct error error = {0};
        ck_assert_ptr_eq(resident_device(&resident, NULL, &error), &fake.device);
        ck_assert_ptr_eq(resident_device(&resident, "fake", &error), &fake.device);
        ck_assert_ptr_eq(resident_device(&resident, "uuid-of-fake", &error), &fake.device);
        ck_assert_ptr_null(resident_device(&resident, "cuda:7", &error));
        ck_assert_int_eq(error.code, STREAMER_EINVAL);
        ck_assert_ptr_nonnull(strstr(error.text, "cuda:7"));
}
END_TEST

START_TEST(among_several_devices_one_must_be_named)
{
        struct error error = {0};
        struct fake_device second;
        fake_device_init(&second, "second", BUDGET, false);
        devices[1] = &second.device;
        resident.n_devices = 2;
        ck_assert_ptr_null(resident_device(&resident, NULL, &error));
        ck_assert_int_eq(error.code, STREAMER_EINVAL);
        ck_assert_ptr_eq(resident_device(&resident, "second", &error), &second.device);
        resident.n_devices = 1;
        fake_device_deinit(&second);
}
END_TEST

/* ---- budget ---- */

START_TEST(a_charge_takes_from_the_budget_and_a_release_gives_back)
{
        struct generation *g = loading_with("m", 10 * MiB);
        ck_assert_uint_eq(fake.device.used, 10 * MiB);
        ck_assert_uint_eq(g->charged, 10 * MiB);
        ready(g);
        generation_drop_name(g, "m");
        ck_assert_uint_eq(fake.device.used, 10 * MiB); /* until it is freed */
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(fake.device.used, 0);
}
END_TEST

START_TEST(the_last_byte_of_the_budget_may_be_taken)
{
        struct error error = {0};
        struct generation *g = loading("m");
        ck_assert_int_eq(generation_charge(g, BUDGET, &error), 0);
        ck_assert_int_eq(generation_charge(g, 1, &error), STREAMER_ENOMEM);
        ck_assert_uint_eq(g->charged, BUDGET);
        failed(g, "x");
}
END_TEST

START_TEST(what_does_not_fit_is_told_with_figures_and_holders)
{
        struct error error = {0};
        ready(loading_with("first", 40 * MiB));
        struct generation *leased = ready(loading_with("second", 20 * MiB));
        leased->n_leases = 1;
        struct generation *g = loading("m");
        ck_assert_int_eq(generation_charge(g, 10 * MiB, &error), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(error.text, "10485760 bytes needed, 4194304 of 67108864 free"));
        ck_assert_ptr_nonnull(strstr(error.text, "first 41943040 (ready)"));
        ck_assert_ptr_nonnull(strstr(error.text, "second 20971520 (ready, 1 lease by"));
        ck_assert_uint_eq(g->charged, 0);
        ck_assert_uint_eq(fake.device.used, 60 * MiB);
        leased->n_leases = 0;
        failed(g, error.text);
}
END_TEST

START_TEST(what_does_not_fit_an_empty_device_says_that_it_is_empty)
{
        struct error error = {0};
        struct generation *g = loading("m");
        ck_assert_int_eq(generation_charge(g, BUDGET + 1, &error), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(error.text, "nothing resident"));
        failed(g, error.text);
}
END_TEST

START_TEST(more_holders_than_fit_the_text_are_cut)
{
        struct error error = {0};
        struct generation *many[30], *g;
        char name[120];
        for (size_t i = 0; i < ARRAY_SIZE(many); i++) {
                memset(name, 'n', sizeof(name));
                snprintf(name + 100, 20, "%zu", i);
                many[i] = loading_with(name, 2 * MiB);
                ready(many[i]);
        }
        g = loading("m");
        ck_assert_int_eq(generation_charge(g, 10 * MiB, &error), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(error.text, "10485760 bytes needed"));
        failed(g, error.text);
}
END_TEST

/* ---- drop is not release ---- */

START_TEST(memory_stays_while_a_lease_holds_it)
{
        struct generation *g = ready(loading_with("m", 2 * MiB));
        g->n_leases = 2;
        generation_drop_name(g, "m");
        ck_assert_int_eq((int)g->state, (int)GENERATION_DRAINING);
        ck_assert_ptr_eq(resident_any(&resident, "m"), g); /* for ps */
        core_settle();
        g->n_leases--;
        generation_settle(g);
        core_settle();
        ck_assert_uint_eq(fake.freed, 0);
        ck_assert_uint_eq(fake.device.used, 2 * MiB);
        g->n_leases--;
        generation_settle(g);
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(fake.freed, 1);
}
END_TEST

START_TEST(memory_stays_while_a_pin_holds_it)
{
        struct generation *g = ready(loading_with("m", 2 * MiB));
        generation_pin(g);
        generation_drop_name(g, "m");
        core_settle();
        ck_assert_uint_eq(fake.freed, 0);
        generation_unpin(g);
        core_until(resident_empty(&resident));
}
END_TEST

START_TEST(a_failed_load_keeps_its_memory_for_those_who_attached_early)
{
        struct generation *g = loading_with("m", 2 * MiB);
        g->n_leases = 1;
        failed(g, "changed");
        core_settle();
        ck_assert_uint_eq(fake.freed, 0);
        g->n_leases = 0;
        generation_settle(g);
        core_until(fake.device.used == 0);
        ck_assert_ptr_eq(resident_failed(&resident, "m"), g); /* listed, without memory */
        ck_assert_uint_eq(g->n_segments, 0);
        ck_assert_int_eq(g->manifest.fd, -1);
}
END_TEST

START_TEST(what_serves_is_never_freed_though_nobody_holds_it)
{
        struct generation *g = ready(loading_with("m", 2 * MiB));
        generation_settle(g);
        core_settle();
        ck_assert_uint_eq(fake.freed, 0);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), g);
}
END_TEST

START_TEST(memory_is_freed_exactly_once_on_the_devices_thread)
{
        struct generation *g = loading_with("m", 2 * MiB);
        gate_init(&fake.release, false);
        ready(g);
        generation_drop_name(g, "m");
        gate_await(&fake.release, 1);
        generation_settle(g);
        generation_settle(g);
        core_settle();
        ck_assert_uint_eq(fake.device.used, 2 * MiB); /* not given to others before it is free */
        gate_open(&fake.release);
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(gate_come(&fake.release), 1);
        ck_assert_uint_eq(fake.device.used, 0);
}
END_TEST

/* ---- those who wait for a change ---- */

static unsigned changes_since(unsigned *last)
{
        unsigned n = changes - *last;
        *last = changes;
        return n;
}

START_TEST(each_change_is_told_once)
{
        unsigned last = changes;
        struct error error = {0};
        struct generation *g = loading("m");
        ck_assert_uint_eq(changes_since(&last), 0);
        ck_assert_int_eq(generation_charge(g, MiB, &error), 0);
        ck_assert_uint_eq(changes_since(&last), 1);
        ready(g);
        ck_assert_uint_eq(changes_since(&last), 1);
        resident_any(&resident, "m");
        generation_pin(g);
        generation_unpin(g);
        ck_assert_uint_eq(changes_since(&last), 0);
        generation_drop_name(g, "m");
        ck_assert_uint_eq(changes_since(&last), 1);
        core_until(resident_empty(&resident)); /* memory is back */
        ck_assert_uint_eq(changes_since(&last), 1);
        failed(loading("m"), "x");
        ck_assert_uint_eq(changes_since(&last), 1);
}
END_TEST

START_TEST(a_take_over_is_told_for_both)
{
        struct generation *old = ready(loading("m")), *new = loading("m");
        generation_pin(old);
        unsigned last = changes;
        ready(new);
        ck_assert_uint_eq(changes_since(&last), 2);
        generation_unpin(old);
}
END_TEST

int main(void)
{
        suite_begin("resident");
        TCase *states = core_group("states", begin, end);
        tcase_add_test(states, a_generation_begins_loading_with_one_name_and_one_pin);
        tcase_add_test(states, ready_serves_until_its_last_name_goes);
        tcase_add_test(states, what_failed_stays_listed_with_its_reason_until_it_is_unloaded);
        tcase_add_test(states, what_was_not_needed_goes_without_a_trace);
        tcase_add_test(states, what_serves_is_found_before_what_loads_and_what_failed);
        tcase_add_test(states, numbers_rise_and_are_not_used_again);
        tcase_add_test(states, states_have_the_words_of_the_protocol);
        TCase *names = core_group("names", begin, end);
        tcase_add_test(names, an_alias_leads_to_the_same_generation);
        tcase_add_test(names, dropping_a_name_it_does_not_have_changes_nothing);
        tcase_add_test(names, a_newer_generation_takes_the_name_over);
        tcase_add_test(names, an_alias_keeps_the_old_generation_serving);
        tcase_add_test(names, a_new_generation_takes_all_its_names_over);
        tcase_add_test(names, a_success_takes_the_failure_of_its_name_away);
        tcase_add_test(names, an_older_one_that_finishes_late_yields);
        tcase_add_test(names, one_that_finishes_late_keeps_the_names_nobody_took);
        tcase_add_test(names, a_load_whose_names_were_all_taken_drains_when_ready);
        tcase_add_test(names, a_failure_replaces_the_one_before_it);
        tcase_add_test(names, a_failure_leaves_what_serves_alone);
        tcase_add_test(names, only_so_many_failures_stay_listed);
        tcase_add_test(names, failures_that_are_forgotten_may_have_many_names);
        TCase *found = core_group("files and devices", begin, end);
        tcase_add_test(found, the_same_files_on_the_same_device_are_the_same);
        tcase_add_test(found, a_device_is_found_by_name_or_uuid_or_by_being_the_only_one);
        tcase_add_test(found, among_several_devices_one_must_be_named);
        TCase *budget = core_group("budget", begin, end);
        tcase_add_test(budget, a_charge_takes_from_the_budget_and_a_release_gives_back);
        tcase_add_test(budget, the_last_byte_of_the_budget_may_be_taken);
        tcase_add_test(budget, what_does_not_fit_is_told_with_figures_and_holders);
        tcase_add_test(budget, what_does_not_fit_an_empty_device_says_that_it_is_empty);
        tcase_add_test(budget, more_holders_than_fit_the_text_are_cut);
        TCase *release = core_group("drop is not release", begin, end);
        tcase_add_test(release, memory_stays_while_a_lease_holds_it);
        tcase_add_test(release, memory_stays_while_a_pin_holds_it);
        tcase_add_test(release, a_failed_load_keeps_its_memory_for_those_who_attached_early);
        tcase_add_test(release, what_serves_is_never_freed_though_nobody_holds_it);
        tcase_add_test(release, memory_is_freed_exactly_once_on_the_devices_thread);
        TCase *told = core_group("those who wait for a change", begin, end);
        tcase_add_test(told, each_change_is_told_once);
        tcase_add_test(told, a_take_over_is_told_for_both);
        return suite_run();
}
