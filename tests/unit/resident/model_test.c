/* SPDX-License-Identifier: Apache-2.0
 *
 * Resident models: states of a generation, names, device names; and their memory, whose budget is charged until it is
 * freed.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/resident/model_set.h"

/* ---- states ---- */

CORE_FIXTURE(begin, end);

TEST(a_discarded_generation_causes_no_change)
{
        struct generation *g = loading("m");
        unsigned before = changes;
        generation_discard(g);
        ck_assert_ptr_null(resident_any(&resident, "m"));
        generation_put(g);
        ck_assert(!list_empty(&resident.generations)); /* not inside the call */
        core_until(list_empty(&resident.generations));
        ck_assert_uint_eq(changes, before);
}

TEST(a_serving_model_is_found_before_loading_and_failed_ones)
{
        struct generation *bad = failed(loading("m"), "bad");
        ck_assert_ptr_eq(resident_any(&resident, "m"), bad);
        struct generation *young = loading("m");
        ck_assert_ptr_eq(resident_any(&resident, "m"), young);
        struct generation *old = loading("m");
        ready(old);
        ck_assert_ptr_eq(resident_any(&resident, "m"), old);
}

/* Clients see both as "draining", and the settings of the first. */
TEST(a_revoked_member_leads_draining_ones)
{
        struct model_set set = {.members = {ready(loading("m")), ready(loading("n"))}, .n = 2};
        for (size_t i = 0; i < 2; i++) {
                generation_get(set.members[i]);
                generation_drop_all(set.members[i]);
        }
        generation_revoke(set.members[0]);
        ck_assert_ptr_eq(model_set_leading(&set), set.members[0]);
        generation_put(set.members[0]);
        generation_put(set.members[1]);
}

/* ---- names ---- */

TEST(a_new_generation_takes_over_all_names)
{
        ready(loading("a"));
        ready(loading("b"));
        struct generation *new = loading("a");
        generation_add_name(new, "b", new->source, NULL, 0, NULL);
        generation_add_name(new, "c", new->source, NULL, 0, NULL);
        ready(new);
        core_until(list_length(&resident.generations) == 1);
        ck_assert_ptr_eq(resident_ready(&resident, "a"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "b"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "c"), new);
}

TEST(an_older_load_that_finishes_later_yields)
{
        struct generation *older = loading_with("m", 2 * MiB);
        struct generation *newer = loading("m");
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        ck_assert_int_eq((int)older->state, (int)GENERATION_DRAINING);
        core_until(list_length(&resident.generations) == 1);
        ck_assert_uint_eq(fakes[0].device.used, 0);
}

TEST(an_older_load_that_ends_later_keeps_its_free_names)
{
        struct generation *older = loading("m");
        generation_add_name(older, "n", older->source, NULL, 0, NULL);
        generation_add_name(older, "o", older->source, NULL, 0, NULL);
        struct generation *newer = loading("m");
        generation_add_name(newer, "o", newer->source, NULL, 0, NULL);
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        ck_assert_ptr_eq(resident_ready(&resident, "o"), newer);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), older);
        ck_assert_int_eq((int)older->state, (int)GENERATION_READY);
}

TEST(a_load_without_names_drains_when_ready)
{
        struct generation *g = loading("m");
        generation_drop_name(g, "m");
        ck_assert_int_eq((int)g->state, (int)GENERATION_LOADING);
        ready(g);
        core_until(list_empty(&resident.generations));
}

/* The names that were removed, in order; "-": one that was the last. */
static char removals[200];

static void note_removal(struct resident *r, struct generation *g, const char *removed)
{
        bool last = removed == NULL && g->state == GENERATION_UNLOADED;
        if (removed != NULL || last)
                format_append(removals, sizeof(removals), "%s%s ", last ? "-" : "", removed ?: generation_name(g));
}

static struct generation *with_three_names(void)
{
        struct generation *g = loading("a");
        generation_add_name(g, "b", g->source, NULL, 0, NULL);
        generation_add_name(g, "c", g->source, NULL, 0, NULL);
        removals[0] = '\0';
        resident.changed = note_removal;
        return g;
}

static void expire(struct generation *g)
{
        set_last_used(g, 1);
        set_keep_alive(g, 1);
        resident_expire(&resident, now_ns());
}

static void evict(struct generation *g)
{
        model_set_drop_ranks(g, GENERATION_READY, END_EVICTED, "for a test");
}

static void replace(struct generation *g)
{
        struct generation *newer = loading("a");
        generation_add_name(newer, "b", newer->source, NULL, 0, NULL);
        generation_add_name(newer, "c", newer->source, NULL, 0, NULL);
        ready(newer);
}

static void (*const ends[])(struct generation *) = {expire, evict, replace, generation_drop_all};

TEST(each_name_of_a_model_that_ends_is_reported_once, EACH(ends))
{
        ends[_i](ready(with_three_names()));
        core_until(strstr(removals, "-") != NULL);
        ck_assert_str_eq(removals, "a b -c ");
}

/* It had been seen to load. */
TEST(each_name_of_a_failure_that_is_not_listed_is_reported_once, .to = 2)
{
        const struct error error = {.code = STREAMER_EFAILED, .text = "refused"};
        struct generation *g = with_three_names();
        if (_i)
                generation_changed(g);
        generation_fail_unlisted(g, &error);
        generation_put(g);
        core_until(strstr(removals, "-") != NULL);
        ck_assert_str_eq(removals, "a b -c ");
}

static char changed_names[200];

static void note_name(struct resident *r, struct generation *g, const char *name)
{
        ck_assert_ptr_eq(g->resident, r);
        format_append(changed_names, sizeof(changed_names), "%s ", name);
}

static void assert_changed(const char *names)
{
        ck_assert_str_eq(changed_names, names);
        changed_names[0] = '\0';
}

/* What one of very many names of a model costs does not depend on the others. */
TEST(a_change_is_about_all_names_only_where_the_state_has_changed)
{
        struct generation *g = with_three_names();
        changed_names[0] = '\0';
        resident.name_changed = note_name;
        for (int i = 0; i < 2; i++) { /* tensors arrive */
                generation_changed(g);
                assert_changed("c b a ");
        }
        ready(g);
        assert_changed("c b a ");
        generation_changed(g);
        assert_changed("");
        generation_add_name(g, "d", g->source, NULL, 0, NULL);
        generation_changed(g);
        assert_changed("d ");
        generation_drop_name(g, "b");
        assert_changed("b ");
        generation_drop_all(g);
        assert_changed("a c d ");
        core_until(list_empty(&resident.generations));
        assert_changed("d ");
}

TEST(a_load_that_no_client_has_seen_ends_without_a_report)
{
        struct generation *g = with_three_names();
        generation_discard(g);
        generation_put(g);
        core_until(list_empty(&resident.generations));
        ck_assert_str_eq(removals, "");
}

TEST(a_failure_replaces_the_one_before_it)
{
        failed(loading("m"), "first");
        failed(loading("m"), "second");
        core_until(list_length(&resident.generations) == 1);
        ck_assert_str_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL)->error->text, "second");
}

TEST(the_list_of_failed_loads_is_bounded)
{
        struct generation *g = loading("a");
        generation_add_name(g, "a2", g->source, NULL, 0, NULL);
        generation_add_name(g, "a3", g->source, NULL, 0, NULL);
        failed(g, "first");
        failed(loading("b"), "second");
        failed(loading("c"), "third");
        core_until(list_length(&resident.generations) == 2);
        ck_assert_ptr_null(resident_any(&resident, "a"));
        ck_assert_ptr_null(resident_any(&resident, "a3"));
        ck_assert_ptr_nonnull(resident_on(&resident, "b", GENERATION_FAILED, NULL));
        ck_assert_ptr_nonnull(resident_on(&resident, "c", GENERATION_FAILED, NULL));
}

/* ---- the same files ---- */

TEST(the_same_files_on_the_same_device_are_the_same)
{
        struct source_identity x = {.digest = "x"}, y = {.digest = "y"};
        struct generation *g = loading("m");
        ck_assert_ptr_null(resident_same(&resident, &x, &fakes[0].device, NULL, 0));
        generation_set_identity(g, &x);
        ck_assert_ptr_eq(resident_same(&resident, &x, &fakes[0].device, NULL, 0), g);
        ck_assert_ptr_null(resident_same(&resident, &y, &fakes[0].device, NULL, 0));
        ck_assert_ptr_null(resident_same(&resident, &x, NULL, NULL, 0));
        ck_assert_ptr_null(resident_same(&resident, &x, &fakes[0].device, g, 0));
        ready(g);
        ck_assert_ptr_eq(resident_same(&resident, &x, &fakes[0].device, NULL, 0), g);
        ck_assert_ptr_eq(resident_same(&resident, &x, &fakes[0].device, NULL, g->number), g);
        ck_assert_ptr_null(resident_same(&resident, &x, &fakes[0].device, NULL, g->number + 1));
        generation_get(g);
        generation_drop_name(g, "m");
        ck_assert_ptr_null(resident_same(&resident, &x, &fakes[0].device, NULL, 0));
        generation_put(g);
}

/* ---- devices ---- */

TEST(a_device_is_found_by_name_or_uuid_or_by_being_the_only_one)
{
        struct error error = {0};
        ck_assert_ptr_eq(resident_device(&resident, NULL, &error), &fakes[0].device);
        ck_assert_ptr_eq(resident_device(&resident, "first", &error), &fakes[0].device);
        ck_assert_ptr_eq(resident_device(&resident, "uuid-of-first", &error), &fakes[0].device);
        ck_assert_ptr_null(resident_device(&resident, "cuda:7", &error));
        FAILS_WITH(error, error.code, STREAMER_EINVAL, "cuda:7");
}

TEST(among_several_devices_one_must_be_named)
{
        struct error error = {0};
        resident.n_devices = 2;
        ck_assert_ptr_null(resident_device(&resident, NULL, &error));
        ck_assert_int_eq(error.code, STREAMER_EINVAL);
        ck_assert_ptr_eq(resident_device(&resident, "second", &error), &fakes[1].device);
}

/* ---- budget ---- */

TEST(more_holders_than_fit_the_text_are_cut)
{
        struct error error = {0};
        char name[120];
        for (size_t i = 0; i < 30; i++) {
                memset(name, 'n', sizeof(name));
                snprintf(name + 100, 20, "%zu", i);
                ready(loading_with(name, 2 * MiB));
        }
        FAILS_WITH(error, generation_charge(loading("m"), 10 * MiB, &error), STREAMER_ENOMEM, "10.0 MiB needed");
}

/* ---- drop without release ---- */

TEST(a_reference_keeps_the_memory_allocated)
{
        struct generation *g = ready(loading_with("m", 2 * MiB));
        generation_get(g);
        generation_drop_name(g, "m");
        core_settle();
        ck_assert(!g->releasing);
        generation_put(g);
        core_until(list_empty(&resident.generations));
}

TEST(a_failed_load_keeps_its_memory_for_early_attaches)
{
        struct generation *g = loading_with("m", 2 * MiB);
        g->n_leases = 1;
        failed(g, "changed");
        core_settle();
        ck_assert_uint_eq(fakes[0].freed, 0);
        g->n_leases = 0;
        generation_reap_later(g);
        core_until(fakes[0].device.used == 0);
        ck_assert_ptr_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL), g); /* listed, without memory */
        ck_assert_uint_eq(g->n_segments, 0);
        ck_assert_int_eq(g->manifest.fd, -1);
}

TEST(memory_is_freed_exactly_once_on_the_devices_thread)
{
        struct generation *g = loading_with("m", 2 * MiB);
        gate_init(&fakes[0].release, false);
        ready(g);
        generation_drop_name(g, "m");
        core_settle(); /* it is reaped */
        gate_await(&fakes[0].release, 1);
        generation_reap_later(g);
        generation_reap_later(g);
        core_settle();
        ck_assert_uint_eq(fakes[0].device.used, 2 * MiB); /* not granted to others before it is freed */
        gate_open(&fakes[0].release);
        core_until(list_empty(&resident.generations));
        ck_assert_uint_eq(gate_arrived(&fakes[0].release), 1);
        ck_assert_uint_eq(fakes[0].device.used, 0);
}

/* ---- waiting requests ---- */

static unsigned changes_since(unsigned *last)
{
        unsigned n = changes - *last;
        *last = changes;
        return n;
}

TEST(each_event_is_sent_once)
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
        generation_get(g);
        generation_put(g);
        ck_assert_uint_eq(changes_since(&last), 0);
        generation_drop_name(g, "m");
        ck_assert_uint_eq(changes_since(&last), 1);
        core_until(list_empty(&resident.generations)); /* memory is back */
        ck_assert_uint_eq(changes_since(&last), 1);
        failed(loading("m"), "x");
        ck_assert_uint_eq(changes_since(&last), 1);
}

TEST(a_replacement_is_reported_for_both)
{
        struct generation *old = ready(loading("m")), *new = loading("m");
        generation_get(old);
        unsigned last = changes;
        ready(new);
        ck_assert_uint_eq(changes_since(&last), 2);
        generation_put(old);
}

/* ---- users ---- */

TEST(a_failed_load_is_not_charged_while_listed)
{
        struct quotas users;
        quotas_init(&users);
        struct generation *g = loading("m");
        ck_assert_int_eq(quota_hold(&users, 1000, &g->quota_charge, QUOTA_BYTES, 8 * MiB), 0);
        failed(g, "does not fit");
        ck_assert_ptr_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL), g);
        ck_assert_ptr_null(quotas_find(&users, 1000));
}

TEST(memory_of_a_load_that_failed_is_charged_until_it_is_free)
{
        struct quotas users;
        struct error error;
        quotas_init(&users);
        struct generation *g = loading_with("m", 8 * MiB);
        ck_assert_int_eq(quota_hold(&users, 1000, &g->quota_charge, QUOTA_BYTES, 8 * MiB), 0);
        error_set(&error, STREAMER_EFAILED, "late");
        generation_fail(g, &error);
        ck_assert_uint_eq(quotas_find(&users, 1000)->held[QUOTA_BYTES], 8 * MiB);
        generation_put(g);
        core_until(quotas_find(&users, 1000) == NULL);
}

/* ---- many names ---- */

CORE_FIXTURE(begin, end, .timeout = 10);

/* One by one that would be thousands of millions of comparisons. */
TEST(a_name_is_found_among_very_many)
{
        enum { MANY = 60000 };
        char name[32];
        struct generation *g = ready(loading("m"));
        for (int i = 0; i < MANY; i++) {
                snprintf(name, sizeof(name), "name %d", i);
                ck_assert_int_eq(generation_add_name(g, name, g->source, NULL, 0, NULL), 0);
        }
        for (int i = 0; i < MANY; i++) {
                snprintf(name, sizeof(name), "name %d", i);
                ck_assert_ptr_eq(resident_ready(&resident, name), g);
                ck_assert_ptr_eq(resident_named(&resident, name), g);
        }
        ck_assert_ptr_null(resident_ready(&resident, "name"));
        generation_drop_all(g);
        ck_assert_ptr_null(resident_ready(&resident, "name 7"));
}

/* Of one user, who is charged for its bytes once. */
TEST(a_name_is_given_to_a_model_that_has_very_many)
{
        enum { MANY = 60000 };
        struct quotas users;
        struct name_charges charges = {.name = {.user = NULL}};
        char name[32];
        quotas_init(&users);
        struct generation *g = loading_with("m", 8 * MiB);
        ck_assert_int_eq(quota_hold(&users, 1000, &g->quota_charge, QUOTA_BYTES, 8 * MiB), 0);
        ck_assert_int_eq(quota_hold(&users, 1000, &g->model_charge, QUOTA_MODELS, 1), 0);
        ready(g);
        for (int i = 0; i < MANY; i++) {
                snprintf(name, sizeof(name), "name %d", i);
                ck_assert_int_eq(quota_hold(&users, 1000, &charges.name, QUOTA_MODELS, 1), 0);
                ck_assert_int_eq(generation_add_name(g, name, g->source, NULL, 0, &charges), 0);
        }
        ck_assert_uint_eq(quotas_held(&users, 1000, QUOTA_BYTES), 8 * MiB);
        ck_assert_uint_eq(quotas_held(&users, 1000, QUOTA_MODELS), 1 + MANY);
        generation_drop_all(g);
        core_until(quotas_find(&users, 1000) == NULL);
}

static struct generation *ready_with_digest(const char *name, unsigned char first)
{
        struct generation *g = loading(name);
        memset(g->digest, 7, DIGEST_SIZE);
        g->digest[0] = first;
        return ready(g);
}

TEST(models_that_are_ready_are_found_by_their_digest)
{
        struct generation *other = ready_with_digest("a", 1), *old = ready_with_digest("b", 2),
                          *new = ready_with_digest("c", 2), *loads = loading("d");
        unsigned char digest[DIGEST_SIZE];
        memcpy(digest, old->digest, DIGEST_SIZE);
        memcpy(loads->digest, digest, DIGEST_SIZE);
        ck_assert_ptr_eq(resident_first_ready_digest(&resident, digest), old);
        ck_assert_ptr_eq(generation_next_ready_digest(old), new);
        ck_assert_ptr_null(generation_next_ready_digest(new));
        ck_assert_ptr_eq(resident_first_ready_digest(&resident, other->digest), other);
        generation_drop_all(old);
        ck_assert_ptr_eq(resident_first_ready_digest(&resident, digest), new);
        digest[DIGEST_SIZE - 1] = 0;
        ck_assert_ptr_null(resident_first_ready_digest(&resident, digest));
}

TEST(generations_are_found_by_their_source)
{
        struct device *device = &fakes[0].device;
        struct generation *other = generation_new(&resident, "a", "/models/a", device, 0),
                          *old = generation_new(&resident, "b", "/models/b", device, 0),
                          *new = generation_new(&resident, "c", "/models/b", device, 0);
        ck_assert_ptr_eq(resident_first_of_source(&resident, "/models/a"), other);
        ck_assert_ptr_null(generation_next_of_source(other));
        ck_assert_ptr_eq(resident_first_of_source(&resident, "/models/b"), old);
        ck_assert_ptr_eq(generation_next_of_source(old), new);
        ck_assert_ptr_null(generation_next_of_source(new));
        ck_assert_ptr_null(resident_first_of_source(&resident, "/models"));
        generation_discard(old);
        generation_put(old);
        core_until(list_length(&resident.generations) == 2);
        ck_assert_ptr_eq(resident_first_of_source(&resident, "/models/b"), new);
}

TEST(a_generation_takes_little_memory)
{
        ck_assert_uint_le(sizeof(struct generation) + sizeof(struct segment), 1280);
        struct generation *g = loading("m");
        ck_assert_ptr_null(g->segments);
        ck_assert_int_eq(generation_error(g)->code, 0);
        ck_assert_int_eq(generation_make_segments(g, 2), 0);
        ck_assert_uint_eq(g->segments[1].size, 0);
        generation_discard(g);
        generation_put(g);
}
