/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a publication: its segments have the sizes that those of a load would have, and just these are charged.
 */
#include "daemon/publish/publication.h"

#include "tests/lib/load_fixture.h"

static struct quotas users;
static struct publications publications;
static struct publication *publication;
static struct error outcome;

static void on_claim_ended(const struct publication *ended)
{
        ck_assert_ptr_eq(ended, publication);
}

static void begin(void)
{
        static struct published *published;
        static const char *const key[] = {"engine=1"};
        struct error error;
        load_fixture_begin();
        quotas_init(&users);
        publications = (struct publications){.loads = &loads, .users = &users, .keep = 2, .ended = on_claim_ended};
        publications_init(&publications);
        publication = publication_new(&publications, "m", &fake.device, &core_caller);
        ck_assert_ptr_nonnull(publication);
        ck_assert_int_eq(published_new(&published, key, 1, &error), 0);
        publication->published = published;
}

static void end(void)
{
        const struct error error = {.code = STREAMER_ECANCELED};
        publication_abort(publication, &error);
        load_fixture_end();
}

static bool done;

static void on_done(struct publication *p, const struct error *error, void *context)
{
        ck_assert_ptr_eq(p, publication);
        outcome = *error;
        done = true;
}

static const struct quota_limits *unlimited(void)
{
        static struct quota_limits limits = {.unlimited = true, .tables = UINT64_MAX};
        memset(limits.max, 0xff, sizeof(limits.max));
        return &limits;
}

static int reserve(uint64_t bytes)
{
        static const struct model_settings settings;
        struct error error = {0};
        done = false;
        int r = publication_begin(publication, bytes, false, &settings, unlimited(), on_done, NULL, &error);
        if (r < 0)
                return r;
        core_until(done);
        return outcome.code;
}

static int add(uint64_t bytes)
{
        struct error error = {0};
        done = false;
        int r = publication_add_segment(publication, bytes, unlimited(), on_done, NULL, &error);
        if (r < 0)
                return r;
        core_until(done);
        return outcome.code;
}

CORE_FIXTURE(begin, end);

/* page: 0: the device has whole huge pages alone. */
static const struct row {
        uint64_t page, huge, bytes, takes;
} rows[] = {
        {0, 2 * MiB, 3000, 2 * MiB},
        {0, 2 * MiB, 2 * MiB + 1, 4 * MiB},
        {4 * KiB, 2 * MiB, 3000, 4 * KiB},
        {4 * KiB, 2 * MiB, 1 * MiB, 1 * MiB},
        {4 * KiB, 2 * MiB, 1 * MiB + 1, 2 * MiB},
        {16 * KiB, 32 * MiB, 3000, 16 * KiB},
        {16 * KiB, 32 * MiB, 16 * MiB, 16 * MiB},
        {16 * KiB, 32 * MiB, 16 * MiB + 1, 32 * MiB},
        {64 * KiB, 512 * MiB, 3000, 64 * KiB},
        {64 * KiB, 512 * MiB, 20 * MiB - 1, 20 * MiB},
};

TEST(segments_take_small_pages_up_to_half_a_huge_page, EACH(rows))
{
        const struct row *row = &rows[_i];
        const uint64_t unit = row->page > 0 ? row->page : row->huge;
        fake.device.layout = (struct plan_layout){
                .page = row->page, .align = 1, .granularity = row->huge, .small = row->page > 0 ? row->huge / 2 : 0};
        /* Of these bytes, and the least that there can be. */
        ck_assert_int_eq(reserve(row->takes + unit), 0);
        ck_assert_uint_eq(fake.device.used, row->takes + unit);
        ck_assert_int_eq(add(row->bytes), 0);
        ck_assert_int_eq(add(1), 0);
        const struct generation *g = publication->generation;
        ck_assert_uint_eq(g->n_segments, 2);
        ck_assert_uint_eq(g->segments[0].size, row->takes);
        ck_assert_uint_eq(g->segments[1].size, unit);
        ck_assert_uint_eq(fake.device.used, row->takes + unit);
}

TEST(a_segment_beyond_what_it_began_with_is_admitted)
{
        fake.device.layout.small = MiB;
        ck_assert_int_eq(reserve(MiB), 0);
        ck_assert_int_eq(add(MiB - 4096), 0);
        ck_assert_int_eq(add(MiB), 0);
        const struct generation *g = publication->generation;
        ck_assert_uint_eq(g->n_segments, 2);
        ck_assert_uint_eq(fake.device.used, 2 * MiB - 4096);
        ck_assert_uint_eq(g->quota_charge.amount, fake.device.used);
}

/* How a reserve of these bytes is refused for a user who may have 4 MiB. */
static struct error refusal(uint64_t bytes)
{
        static const struct model_settings settings;
        struct quota_limits limits = *unlimited();
        struct error error = {0};
        limits.max[QUOTA_BYTES] = 4 * MiB;
        ck_assert_int_eq(publication_begin(publication, bytes, true, &settings, &limits, on_done, NULL, &error),
                         STREAMER_ELIMIT);
        return error;
}

TEST(what_a_user_can_never_have_is_refused_for_good)
{
        struct quota_charge held = {0};
        fake.device.layout.small = MiB;
        ck_assert_int_eq(quota_hold(&users, core_caller.uid, &held, QUOTA_BYTES, 3 * MiB), 0);
        ck_assert(!refusal(2 * MiB).hopeless);
        ck_assert(!refusal(4 * MiB).hopeless);
        ck_assert(refusal(6 * MiB).hopeless);
        quota_discharge(&held);
}

/* What a client reserves is rounded up to what a segment may take. */
TEST(a_reserve_is_a_number_of_pages)
{
        fake.device.layout.small = MiB;
        ck_assert_int_eq(reserve(2 * MiB + 1), 0);
        ck_assert_uint_eq(fake.device.used, 2 * MiB + 4096);
}
