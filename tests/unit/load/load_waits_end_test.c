/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for memory that end by failure: replicas fail alone, ranks together.
 */
#include "tests/unit/load_waits_fixture.h"

/* ---- failing ---- */

CORE_FIXTURE(load_fixture_begin_multi, end);

TEST(a_load_that_could_never_fit_fails_alone)
{
        struct watched w;
        TWO.device.budget = MiB;
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(strstr(on("m", "two", GENERATION_FAILED)->error.text, "does not fit"));
        TWO.device.budget = BUDGET;
}

TEST(cancelling_ends_the_wait_and_leaves_the_serving_model)
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

TEST(a_replica_continues_when_another_fails_after_the_wait, .to = 2)
{
        struct watched w;
        if (_i == 0)
                ONE.fail_alloc = 1;
        else
                ONE.fail_put = 1;
        reserve_all_but(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        await_blocked(&w);
        release_reserved(1);
        ends(&w, LOAD_READY);
        target_is(&w, 0, "failed", false);
        serves_small(on("m", "two", GENERATION_READY), 1);
}

TEST(a_device_that_is_lost_during_the_wait_fails_alone)
{
        struct watched w;
        reserve_all_but(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        await_blocked(&w);
        __atomic_store_n(&TWO.lost, true, __ATOMIC_SEQ_CST);
        admission_recheck(resident.admission);
        ends(&w, LOAD_READY);
        target_is(&w, 1, "failed", false);
        serves_small(on("m", "one", GENERATION_READY), 1);
}

TEST(a_waiting_target_may_fail_without_the_others)
{
        struct watched w;
        begin_waiting(&w);
        TWO.fail_alloc = 1;
        release_reserved(1);
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_FAILED));
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
}

TEST(a_source_that_changes_during_the_wait_fails_the_load)
{
        struct watched w;
        begin_waiting(&w);
        small_file("small.safetensors", 2);
        release_reserved(1);
        ends(&w, LOAD_FAILED);
        serves_small(on("m", "one", GENERATION_READY), 1);
        ck_assert_ptr_nonnull(strstr(on("m", "two", GENERATION_FAILED)->error.text, "changed"));
}

TEST(shutdown_does_not_wait_for_clients)
{
        struct watched w;
        begin_waiting(&w);
        loads_cancel_all(&loads);
        core_until(loads_empty(&loads));
}

/* ---- ranks ---- */

TEST(ranks_wait_for_all_their_devices_without_holding_any)
{
        struct watched w;
        char *folder = suite_path("ranks-%d", (int)getpid());
        mkdir(folder, 0755);
        for (uint64_t i = 0; i < 2; i++) {
                struct model *m = small_model(i);
                model_write(m, format_text("%s/r%d.safetensors", folder, (int)i));
                model_free(m);
        }
        reserve_all_but(1, 0);
        int r = load_request(&w, &(struct load_request){.source = folder,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"one", "two"},
                                                        .n_devices = 2,
                                                        .pattern = "r{rank}.safetensors",
                                                        .wait = true,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(w.load->admission.blocked);
        core_settle();
        ck_assert_uint_eq(ONE.device.used, 0);
        target_is(&w, 0, "queued", true);
        target_is(&w, 1, "queued", true);
        release_reserved(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 0);
        serves_small(on("m", "two", GENERATION_READY), 1);
}
