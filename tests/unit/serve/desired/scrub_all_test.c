/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashing of many restored models: one after the other, without waiting for a tick, unless a load runs.
 */
#include "tests/lib/load_fixture.h"

#include "daemon/serve/desired/scrub.h"

static struct desired desired;
static struct scrub scrub;

static void begin(void)
{
        load_fixture_begin();
        desired_init(&desired, &loads, NULL);
        scrub_init(&scrub, &desired);
}

CORE_FIXTURE(begin, load_fixture_end);

static size_t n_unchecked(void)
{
        size_t n = 0;
        list_each (pos, &resident.unchecked)
                n++;
        return n;
}

static bool none_is_checked(void)
{
        for (size_t i = 0; i < SCRUB_CHECKS; i++)
                if (scrub.checks[i].checked != NULL)
                        return false;
        return true;
}

static void restore(int models)
{
        for (int i = 0; i < models; i++) {
                char *path = suite_path("%d.safetensors", i);
                model_write(model_mixed((uint64_t)i, 64 << 10), path);
                struct generation *g = load_ready(path, format_text("m%d", i));
                list_append(&resident.unchecked, &g->in_unchecked);
        }
        core_until(loads_empty(&loads));
}

static void check_all(void)
{
        scrub_tick(&scrub);
        core_until(n_unchecked() == 0 && none_is_checked());
}

TEST(one_tick_starts_the_check_of_all)
{
        restore(12);
        check_all();
        list_each_item (const struct generation, g, &resident.generations, link)
                ck_assert_int_eq(g->state, GENERATION_READY);
}

TEST(while_a_load_runs_each_tick_starts_one)
{
        struct watched w;
        restore(4);
        load_start_held(&w, small_file("held.safetensors", 1), LOAD_OPENING);
        for (size_t left = 4; left-- > 1;) {
                scrub_tick(&scrub);
                scrub_tick(&scrub); /* one is under way */
                core_until(none_is_checked());
                ck_assert_uint_eq(n_unchecked(), left);
        }
        load_release_held();
        ends(&w, LOAD_READY);
        check_all();
}

TEST(a_load_that_waits_for_memory_delays_none)
{
        struct watched w;
        restore(4);
        load_start_held(&w, small_file("held.safetensors", 1), LOAD_QUEUED);
        check_all();
        load_release_held();
        ends(&w, LOAD_READY);
}
