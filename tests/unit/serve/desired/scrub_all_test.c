/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashing of many restored models: one after the other, without waiting for a tick.
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

static bool is_idle(void)
{
        bool idle = list_empty(&resident.unchecked);
        for (size_t i = 0; i < SCRUB_CHECKS; i++)
                idle = idle && scrub.checks[i].checked == NULL;
        return idle;
}

TEST(one_tick_starts_the_check_of_all)
{
        enum { MODELS = 12 };
        for (int i = 0; i < MODELS; i++) {
                char *path = suite_path("%d.safetensors", i);
                model_write(model_mixed((uint64_t)i, 64 << 10), path);
                struct generation *g = load_ready(path, format_text("m%d", i));
                list_append(&resident.unchecked, &g->in_unchecked);
        }
        core_until(loads_empty(&loads));
        scrub_tick(&scrub);
        core_until(is_idle());
        list_each_item (const struct generation, g, &resident.generations, link)
                ck_assert_int_eq(g->state, GENERATION_READY);
}
