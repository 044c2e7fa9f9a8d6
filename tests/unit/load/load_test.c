/* SPDX-License-Identifier: Apache-2.0
 *
 * A load from a source to a ready generation: success, coalescing, refusals, and dry runs. load_end_test tests
 * failures.
 */
#include "tests/lib/load_fixture.h"

#include "daemon/base/sys/machine.h"
#include "tests/lib/kernel_counters.h"

/* ---- success ---- */

CORE_FIXTURE(load_fixture_begin, load_fixture_end);

/* Loop test: in place, and through slots. */
TEST(a_load_becomes_a_ready_model, .to = 2)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        fake.hidden = _i == 1;
        if (fake.hidden)
                fake.device.layout = (struct plan_layout){.page = 0, .align = 256, .granularity = 2 * MiB};
        file_uncache(path);
        load_start(&w, path, "m");
        ends(&w, LOAD_READY);
        struct generation *g = resident_ready(&resident, "m");
        ck_assert_ptr_eq(g, w.generation);
        serves_small(g, 1);
        ck_assert_str_eq(g->source, path);
        ck_assert(!g->verified);
        ck_assert_uint_gt(arrivals, 0);
        ck_assert_uint_eq(fake.device.used, generation_needs(&g->segments[0].size, 1, g->manifest.size));
        ck_assert_uint_eq(w.progress.bytes, g->data_bytes);
        ck_assert_uint_eq(w.progress.total, g->data_bytes);
        ck_assert_uint_eq(w.progress.tensors, SMALL_TENSORS);
        ck_assert_uint_eq(w.progress.tensors_total, SMALL_TENSORS);
        ck_assert_uint_eq(w.progress.generation, g->number);
}

TEST(a_removed_watcher_is_not_notified)
{
        struct watched w, other = {.ended = false};
        load_start(&w, small_file("small.safetensors", 1), "m");
        load_watch(w.request, &other.watch, w.watch.ended);
        load_unwatch(&w.watch);
        load_unwatch(&w.watch);
        core_until(other.ended);
        ck_assert(!w.ended);
        load_unwatch(&other.watch); /* after the end, too */
}

/* ---- coalescing loads ---- */

TEST(an_alias_of_a_loading_model_waits_for_it)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&a, path, LOAD_READING);
        load_start(&b, path, "n");
        core_until(generation_has_name(a.load->targets[0].generation, "n"));
        core_settle();
        ck_assert(!b.ended);
        ck_assert_ptr_eq(b.request->load, a.load); /* its watcher follows the other load now */
        ck_assert_ptr_eq(loads_find(&loads, "n"), a.load);
        load_release_held();
        core_until(a.ended && b.ended);
        ck_assert_ptr_eq(a.generation, b.generation);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), a.generation);
        ck_assert_uint_eq(fake.allocs, 1);
}

TEST(an_alias_fails_with_its_loading_model)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&a, path, LOAD_READING);
        load_start(&b, path, "n");
        core_until(generation_has_name(a.load->targets[0].generation, "n"));
        load_cancel(a.load);
        ends(&a, LOAD_CANCELLED);
        ends(&b, LOAD_CANCELLED);
        ck_assert_ptr_nonnull(resident_on(&resident, "n", GENERATION_FAILED, NULL));
        load_release_held();
}

/* ---- refused requests ---- */

TEST(concurrent_loads_are_bounded)
{
        struct watched a, b;
        loads.max_running = 1;
        char *path = small_file("one.safetensors", 1), *other = small_file("two.safetensors", 2);
        load_start_held(&a, path, LOAD_READING);
        int r = load_request(&b, &(struct load_args){.source = other, .name = "n"});
        ck_assert_int_eq(r, STREAMER_ELIMIT);
        load_start(&b, path, "m"); /* joining is no further load */
        load_release_held();
        core_until(a.ended && b.ended);
        load_ready(other, "n");
}

static const struct {
        struct load_args request;
        const char *says;
} wrong_requests[] = {
        {{.source = "relative"}, "absolute"},
        {{.source = "/a/../b"}, "'..'"},
        {{.source = "/x", .name = ""}, "name"},
        {{.source = "/x", ON_FIELDS("cuda:9")}, "cuda:9"},
        {{.source = "/x", ON_FIELDS("fake", "uuid-of-fake")}, "named twice"},
};

TEST(wrong_requests_are_refused_at_once, EACH(wrong_requests))
{
        struct watched w;
        FAILS_WITH(w.error, load_request(&w, &wrong_requests[_i].request), STREAMER_EINVAL, wrong_requests[_i].says);
        ck_assert(loads_empty(&loads));
        ck_assert(list_empty(&resident.generations));
}

TEST(missing_sources_fail_with_their_code)
{
        char *missing = suite_path("missing.safetensors");
        load_fails(missing, "m", STREAMER_ENOENT, missing);
        load_fails("/etc/passwd", "n", STREAMER_EFAILED, "outside the roots");
        ck_assert_ptr_null(resident_on(&resident, "m", GENERATION_FAILED, NULL));
        ck_assert_ptr_nonnull(ended_find(&resident.ended, "m", NULL));
        ck_assert_ptr_null(ended_find(&resident.ended, "n", NULL));
}

/* ---- dry runs ---- */

TEST(a_dry_run_plans_and_changes_nothing)
{
        struct watched w;
        ask_for(&w, (struct load_args){.source = small_file("small.safetensors", 1), .dry_run = true});
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.needed, 4 * MiB + round_up(8 * KiB, machine_pages.small)); /* of the manifest */
        ck_assert(!w.resident);
        ck_assert(list_empty(&resident.generations));
        ck_assert_uint_eq(fake.allocs, 0);
}

TEST(a_dry_run_can_be_cancelled)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        load_hold_lane(path);
        ask_for(&w, (struct load_args){.source = path, .dry_run = true});
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        gate_open(&lane_gate);
        core_until(loads_empty(&loads));
}
