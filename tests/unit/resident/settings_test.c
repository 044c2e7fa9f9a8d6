/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of names: what several make together, and what the next generation under a name takes over.
 */
#include "tests/unit/resident_fixture.h"

/* ---- what two make together ---- */

static const struct {
        struct model_settings a, b, together;
} pairs[] = {
        {{.priority = 7}, {.priority = 9}, {.priority = 9}},
        {{.pinned = true}, {.pinned = false}, {.pinned = true}},
        {{.pinned = false}, {.pinned = false}, {.pinned = false}},
        {{.keep_alive_ns = 5}, {.keep_alive_ns = 3}, {.keep_alive_ns = 5}},
        {{.keep_alive_ns = 5}, {.keep_alive_ns = 0}, {.keep_alive_ns = 0}},          /* without limit */
        {{.drain_timeout_ns = 5}, {.drain_timeout_ns = 3}, {.drain_timeout_ns = 0}}, /* each has its own */
};

FIXTURE();

TEST(the_strongest_setting_counts, EACH(pairs))
{
        const struct model_settings ab = settings_combine(&pairs[_i].a, &pairs[_i].b),
                                    ba = settings_combine(&pairs[_i].b, &pairs[_i].a);
        ck_assert(settings_equal(&ab, &pairs[_i].together));
        ck_assert(settings_equal(&ba, &pairs[_i].together));
}

/* ---- of generations ---- */

#define ALL (SETTING_PINNED | SETTING_KEEP_ALIVE | SETTING_PRIORITY)

static struct model_name *name_of(const struct generation *g, const char *text)
{
        struct model_name *name = generation_find_name(g, text);
        ck_assert_ptr_nonnull(name);
        return name;
}

static struct model_name *add_name(struct generation *g, const char *text, struct model_settings settings)
{
        ck_assert_int_eq(generation_add_name(g, text, g->source, NULL, 0, NULL), 0);
        model_name_set_settings(name_of(g, text), &settings, 0);
        return name_of(g, text);
}

static void change(struct model_name *name, unsigned asks, struct model_settings to)
{
        const struct settings_change change = {asks, to};
        model_name_change_settings(name, &change);
}

static void assert_settings(const struct model_settings *are, bool pinned, uint64_t keep_alive_ns, unsigned priority)
{
        ck_assert(are->pinned == pinned);
        ck_assert_uint_eq(are->keep_alive_ns, keep_alive_ns);
        ck_assert_uint_eq(are->priority, priority);
}

CORE_FIXTURE(begin, end);

TEST(a_generation_has_what_its_names_make_together)
{
        struct generation *g = ready(loading("m"));
        change(name_of(g, "m"), ALL, (struct model_settings){.keep_alive_ns = 5, .priority = 50});
        struct model_name *alias =
                add_name(g, "alias", (struct model_settings){.keep_alive_ns = 9, .priority = 20, .pinned = true});
        assert_settings(&g->settings, true, 9, 50);
        change(alias, SETTING_PINNED, (struct model_settings){.pinned = false});
        assert_settings(&g->settings, false, 9, 50);
        change(name_of(g, "m"), SETTING_PINNED, (struct model_settings){.pinned = true});
        assert_settings(&g->settings, true, 9, 50);
        assert_settings(&alias->settings, false, 9, 20);
        generation_drop_name(g, "m");
        assert_settings(&g->settings, false, 9, 20);
        ck_assert(generation_is_idle(g));
}

TEST(a_generation_that_has_lost_its_names_is_not_pinned)
{
        struct generation *g = ready(loading("m"));
        struct lease *lease = lease_new(&leases, process_of(1), g, NULL);
        set_pin(g, true);
        generation_drop_name(g, "m");
        ck_assert(!g->settings.pinned);
        lease_end(&leases, lease);
}

TEST(the_next_generation_of_a_name_has_its_settings_and_not_those_of_other_names)
{
        struct generation *old = ready(loading("m"));
        change(name_of(old, "m"), ALL, (struct model_settings){.keep_alive_ns = 5, .priority = 50, .pinned = true});
        add_name(old, "alias", (struct model_settings){.keep_alive_ns = 9, .priority = 70});
        struct generation *new = loading("m");
        model_name_set_settings(name_of(new, "m"), &(struct model_settings){.keep_alive_ns = 1, .priority = 100}, 0);
        change(name_of(new, "m"), SETTING_PRIORITY, (struct model_settings){.priority = 60});
        ready(new);
        assert_settings(&new->settings, true, 5, 60); /* the priority was asked for since */
        assert_settings(&old->settings, false, 9, 70);
}

TEST(a_failed_generation_leaves_the_settings_of_the_name_as_they_are)
{
        struct generation *old = ready(loading("m"));
        change(name_of(old, "m"), ALL, (struct model_settings){.keep_alive_ns = 5, .priority = 50, .pinned = true});
        struct generation *new = loading("m");
        change(name_of(new, "m"), ALL, (struct model_settings){.keep_alive_ns = 1, .priority = 60});
        failed(new, "lost");
        assert_settings(&old->settings, true, 5, 50);
        struct generation *third = ready(loading("m"));
        assert_settings(&third->settings, true, 5, 50);
}

TEST(what_was_unloaded_passes_nothing_on)
{
        struct generation *old = ready(loading("m")), *new = loading("m");
        set_pin(old, true);
        generation_drop_name(old, "m");
        ready(new);
        ck_assert(!new->settings.pinned);
}

/* The older load ends last: its name stays with the newer generation. */
TEST(what_an_older_load_asked_for_is_given_to_the_name_that_serves)
{
        struct generation *older = loading("m"), *newer = loading("m");
        change(name_of(older, "m"), SETTING_PINNED | SETTING_PRIORITY,
               (struct model_settings){.priority = 50, .pinned = true});
        change(name_of(newer, "m"), SETTING_PRIORITY, (struct model_settings){.priority = 60});
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        assert_settings(&newer->settings, true, 0, 60);
}
