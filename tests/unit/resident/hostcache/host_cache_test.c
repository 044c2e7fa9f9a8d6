/* SPDX-License-Identifier: Apache-2.0
 *
 * The size of the host cache, and its eviction.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/sys/machine.h"
#include "tests/unit/resident_fixture.h"

/* ---- size ---- */

static const struct {
        uint64_t wanted, cgroup, memory, budget;
} sizes[] = {
        {8 * GiB, MACHINE_UNLIMITED, 64 * GiB, 8 * GiB},   /* as configured */
        {32 * GiB, MACHINE_UNLIMITED, 64 * GiB, 32 * GiB}, /* half of the machine, and not more */
        {33 * GiB, MACHINE_UNLIMITED, 64 * GiB, 32 * GiB},
        {32 * GiB, 16 * GiB, 64 * GiB, 8 * GiB}, /* a pod's limit counts, not its node's memory */
        {4 * GiB, 16 * GiB, 64 * GiB, 4 * GiB},
        {32 * GiB, 128 * GiB, 64 * GiB, 32 * GiB}, /* a limit above the machine's memory */
        {1, 0, 64 * GiB, 0},
};

TEST(the_cache_takes_at_most_half_of_the_cgroup_or_machine, EACH(sizes))
{
        ck_assert_uint_eq(host_cache_budget(sizes[_i].wanted, sizes[_i].cgroup, sizes[_i].memory), sizes[_i].budget);
}

/* ---- choice of victims ---- */

static void begin_cache(void)
{
        begin();
        host_cache.budget = GiB;
}

static void end_cache(void)
{
        drop_all();
        core_until(list_empty(&host_cache.copies));
        ck_assert_uint_eq(host_cache.used, 0);
        end();
}

static struct generation *model(const char *name, enum generation_state state)
{
        struct generation *g = generation_new(&resident, name, "/models/x", devices[0], 0);
        generation_assign_number(g);
        struct source_identity identity = {.digest = {0}};
        snprintf((char *)identity.digest, sizeof(identity.digest), "%s", name);
        generation_set_identity(g, &identity);
        if (state == GENERATION_LOADING)
                return g;
        generation_set_state(g, GENERATION_READY);
        if (state == GENERATION_CACHED)
                generation_set_state(g, state);
        generation_put(g);
        return g;
}

/* It holds a copy of so many bytes, last used then. */
static struct generation *cached(const char *name, uint64_t bytes, uint64_t last_used)
{
        struct generation *g = model(name, GENERATION_CACHED);
        struct host_copy *copy = calloc(1, sizeof(*copy));
        *copy = (struct host_copy){.cache = &host_cache,
                                   .device = devices[0],
                                   .state = HOST_COPY_COMPLETE,
                                   .holders = 1,
                                   .identity = g->identity,
                                   .last_used_ns = last_used,
                                   .bytes = bytes,
                                   .manifest.fd = -1};
        list_append(&host_cache.copies, &copy->link);
        host_cache.used += bytes;
        g->copy = copy;
        return g;
}

/* The names of the victims, in order, or "none". */
static const char *victims_for(uint64_t needed)
{
        static char text[256];
        size_t n;
        const struct evict_candidate *candidates = host_cache_choose(&host_cache, needed, &n);
        snprintf(text, sizeof(text), "%s", candidates == NULL ? "none" : "");
        for (size_t i = 0; candidates != NULL && i < n; i++)
                if (candidates[i].chosen)
                        format_append(text, sizeof(text), "%s%s", text[0] != '\0' ? " " : "",
                                      (const char *)((const struct host_copy *)candidates[i].owner)->identity.digest);
        return text;
}

CORE_FIXTURE(begin_cache, end_cache);

TEST(the_least_recently_used_is_dropped)
{
        cached("b", 10, 2);
        cached("a", 10, 1);
        cached("c", 10, 3);
        ck_assert_str_eq(victims_for(1), "a");
        ck_assert_str_eq(victims_for(20), "a b");
        ck_assert_str_eq(victims_for(30), "a b c");
}

TEST(a_cached_copy_that_also_serves_is_dropped_first)
{
        cached("a", 10, 1);
        cached("b", 10, 2);
        cached("c", 10, 3);
        model("c", GENERATION_READY);
        model("b", GENERATION_LOADING);
        model("d", GENERATION_READY);
        ck_assert_str_eq(victims_for(10), "c");
        ck_assert_str_eq(victims_for(11), "c a");
}

TEST(pinned_used_and_incomplete_copies_are_not_dropped)
{
        set_pin(cached("pinned", 10, 1), true);
        struct host_copy *used = cached("used", 10, 2)->copy, *fills = cached("fills", 10, 3)->copy;
        cached("a", 10, 4);
        used->users = 1;
        fills->state = HOST_COPY_FILLING;
        ck_assert_str_eq(victims_for(10), "a");
        ck_assert_str_eq(victims_for(11), "none");
        used->users = 0;
        ck_assert_str_eq(victims_for(11), "used a");
        fills->state = HOST_COPY_COMPLETE;
}

/* One copy of two generations with a name each. */
TEST(a_copy_is_kept_while_any_holder_is_pinned)
{
        struct generation *a = cached("a", 10, 1), *other = model("other", GENERATION_CACHED);
        cached("b", 10, 2);
        other->copy = a->copy;
        a->copy->holders++;
        ck_assert_str_eq(victims_for(10), "a");
        set_pin(other, true);
        ck_assert_str_eq(victims_for(10), "b");
}

static void tick_after_ten_seconds(void)
{
        const struct host_copy *copy = container_of(host_cache.copies.next, struct host_copy, link);
        log_set_level(LOG_LEVEL_WARN);
        log_set_output(&(struct log_output){.format = LOG_FORMAT_PLAIN});
        host_cache_tick(&host_cache, copy->since_ns + 10 * SECOND);
}

TEST(a_copy_that_gets_no_space_in_ten_seconds_is_dropped)
{
        struct generation *g = cached("a", GiB, 1);
        g->copy->state = HOST_COPY_WAITING; /* for others, which fill the budget */
        generation_get(g->copy->from = g);
        host_cache_tick(&host_cache, g->copy->since_ns + 10 * SECOND - 1);
        ck_assert(!list_empty(&host_cache.copies));
        char *said = suite_stderr(tick_after_ten_seconds);
        ck_assert(list_empty(&host_cache.copies));
        host_cache.used = 0; /* of the others */
        ck_assert_msg(strstr(said, "what is to be freed for it has not been in 10 s") != NULL, "%s", said);
        core_until(list_empty(&resident.generations));
}

static void make_ranks(struct generation *const *ranks, unsigned n)
{
        for (unsigned i = 0; i < n; i++) {
                generation_set_number(ranks[i], ranks[0]->number);
                ranks[i]->rank = i;
                ranks[i]->n_ranks = n;
        }
}

TEST(ranks_that_lack_another_one_are_counted_and_dropped)
{
        struct generation *ranks[] = {cached("first", 10, 1), cached("second", 10, 2), cached("third", 10, 3)};
        struct generation *other = cached("a", 10, 4);
        make_ranks(ranks, 3);
        ck_assert_uint_eq(resident.n_partly_cached, 0);
        generation_drop_name(ranks[1], "second");
        ck_assert_uint_eq(resident.n_partly_cached, 1);
        host_cache_drop_partial_ranks(&host_cache);
        ck_assert_uint_eq(resident.n_partly_cached, 0);
        ck_assert_uint_eq(resident.n_in_state[GENERATION_CACHED], 1);
        ck_assert_int_eq(other->state, GENERATION_CACHED);
}

TEST(ranks_are_kept_or_evicted_together)
{
        struct generation *ranks[] = {cached("first", 10, 1), cached("second", 10, 2)};
        cached("a", 10, 3);
        make_ranks(ranks, 2);
        ck_assert_str_eq(victims_for(20), "first second");
        ranks[1]->copy->users = 1;
        ck_assert_str_eq(victims_for(10), "a");
        ck_assert_str_eq(victims_for(20), "none");
        ranks[1]->copy->users = 0;
        set_pin(ranks[1], true);
        ck_assert_str_eq(victims_for(10), "a");
        ck_assert_str_eq(victims_for(20), "none");
}
