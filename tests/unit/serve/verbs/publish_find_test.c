/* SPDX-License-Identifier: Apache-2.0
 *
 * Published models of which another version of the base becomes resident.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/resident/published.h"
#include "daemon/serve/verbs/verbs_private.h"

static struct server server;

static void begin_publish(void)
{
        begin();
        server = (struct server){.resident = &resident};
}

static struct generation *from_source(const char *name, const char *source, unsigned char version)
{
        struct generation *g = generation_new(&resident, name, source, devices[0], 0);
        const struct source_identity identity = {.digest = {version}};
        ck_assert_ptr_nonnull(g);
        generation_assign_number(g);
        generation_set_identity(g, &identity);
        return g;
}

static struct generation *loaded(const char *name, const char *source, unsigned char version)
{
        return ready(from_source(name, source, version));
}

/* From version 1 of the base. */
static struct generation *made_from(const char *name, const char *base)
{
        struct generation *g = from_source(name, "published:", 0);
        struct error error;
        ck_assert_int_eq(published_new(&g->published, NULL, 0, &error), 0);
        g->published->base.source = format_text("%s", base);
        g->published->base.identity.digest[0] = 1;
        return ready(g);
}

static void end_publish(void)
{
        drop_all();
        core_until(list_empty(&resident.generations));
        end();
}

CORE_FIXTURE(begin_publish, end_publish, .timeout = 10);

TEST(a_model_is_unloaded_when_another_version_of_its_base_is_ready)
{
        loaded("base", "/base", 1);
        struct generation *model = made_from("model", "/base"), *other = made_from("other", "/other");
        publish_tick(&server);
        ck_assert_int_eq(model->state, GENERATION_READY);
        loaded("base", "/base", 2);
        publish_tick(&server);
        ck_assert_ptr_null(resident_ready(&resident, "model"));
        ck_assert_int_eq(other->state, GENERATION_READY);
}

/* One by one that would be a thousand million comparisons. */
TEST(another_version_is_found_among_very_many_models)
{
        enum { MANY = 20000 };
        for (int i = 0; i < MANY; i++) {
                char *base = format_text("/base-%d", i);
                loaded(base, base, 1);
                made_from(format_text("model-%d", i), base);
        }
        publish_tick(&server);
        ck_assert_uint_eq(resident.n_published, MANY);
        loaded("new", "/base-7", 2);
        publish_tick(&server);
        ck_assert_uint_eq(resident.n_published, MANY - 1);
        ck_assert_ptr_null(resident_ready(&resident, "model-7"));
}
