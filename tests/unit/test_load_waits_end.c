/* SPDX-License-Identifier: Apache-2.0
 *
 * How the wait for room ends other than by room: replicas fail alone, ranks all together.
 */
#include "tests/unit/load_waits_stage.h"

#include <sys/stat.h>

/* ---- failing ---- */

START_TEST(one_that_could_never_fit_fails_alone)
{
        struct watched w;
        TWO.device.budget = MiB;
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(strstr(on("m", "two", GENERATION_FAILED)->error.text, "does not fit"));
        TWO.device.budget = BUDGET;
}
END_TEST

START_TEST(cancelling_ends_the_wait_and_leaves_what_serves)
{
        struct watched w;
        begin_waiting(&w);
        ck_assert_ptr_eq(loads_find(&loads, "m"), w.load);
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        serves_small(on("m", "one", GENERATION_READY), 1);
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_FAILED));
        ck_assert_uint_eq(TWO.allocs, 0);
}
END_TEST

START_TEST(who_waits_goes_on_when_all_that_were_read_have_failed)
{
        struct watched w;
        if (_i == 0)
                ONE.fail_alloc = 1;
        else
                ONE.fail_put = 1;
        leave(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(on("m", "one", GENERATION_FAILED) != NULL);
        core_until(w.load->state == LOAD_QUEUED && !w.load->over);
        ck_assert(!w.ended);
        target_is(&w, 0, "failed", false);
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "two", GENERATION_READY), 1);
}
END_TEST

START_TEST(who_waited_may_fail_without_the_others)
{
        struct watched w;
        begin_waiting(&w);
        TWO.fail_alloc = 1;
        give_back(1);
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_FAILED));
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
}
END_TEST

START_TEST(a_source_that_changes_meanwhile_fails_who_waited)
{
        struct watched w;
        begin_waiting(&w);
        small_file("small.safetensors", 2);
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        ck_assert_ptr_nonnull(strstr(on("m", "two", GENERATION_FAILED)->error.text, "changed"));
}
END_TEST

START_TEST(the_daemons_end_waits_for_nobody)
{
        struct watched w;
        begin_waiting(&w);
        loads_cancel_all(&loads);
        core_until(loads_empty(&loads));
}
END_TEST

/* ---- ranks ---- */

START_TEST(ranks_wait_for_all_their_devices_and_hold_none)
{
        struct watched w;
        char *folder = suite_path("ranks-%d", (int)getpid());
        mkdir(folder, 0755);
        for (uint64_t i = 0; i < 2; i++) {
                struct model *m = small_model(i);
                model_write(m, format_text("%s/r%d.safetensors", folder, (int)i));
                model_free(m);
        }
        leave(1, 0);
        int r = load_request(&w, &(struct load_request){.source = folder,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"one", "two"},
                                                        .n_devices = 2,
                                                        .pattern = "r{rank}.safetensors",
                                                        .wait = true,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(w.load->targets[0].room.blocked);
        core_settle();
        ck_assert_uint_eq(ONE.device.used, 0);
        target_is(&w, 0, "queued", true);
        target_is(&w, 1, "queued", true);
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 0);
        serves_small(on("m", "two", GENERATION_READY), 1);
}
END_TEST

int main(void)
{
        suite_begin("loads that stop waiting");
        TCase *failing = core_group("failing", loading_begin_several, end);
        tcase_add_test(failing, one_that_could_never_fit_fails_alone);
        tcase_add_test(failing, cancelling_ends_the_wait_and_leaves_what_serves);
        tcase_add_loop_test(failing, who_waits_goes_on_when_all_that_were_read_have_failed, 0, 2);
        tcase_add_test(failing, who_waited_may_fail_without_the_others);
        tcase_add_test(failing, a_source_that_changes_meanwhile_fails_who_waited);
        tcase_add_test(failing, the_daemons_end_waits_for_nobody);
        TCase *ranks = core_group("ranks", loading_begin_several, end);
        tcase_add_test(ranks, ranks_wait_for_all_their_devices_and_hold_none);
        return suite_run();
}
