/* SPDX-License-Identifier: Apache-2.0
 *
 * How often the holders of a model that loads are notified of tensors: what arrives meanwhile is notified together, and
 * the pause is longer where there are many.
 */
#include "tests/lib/load_fixture.h"

#define BLOCKS 8

static uint64_t notice_at;
static unsigned n_later;
static struct watched w;

static void on_later(struct loads *l, uint64_t at_ns)
{
        ck_assert_ptr_eq(l, &loads);
        notice_at = at_ns;
        n_later++;
}

/* Its tables are complete, and no tensor has arrived. */
static void begin(void)
{
        load_fixture_begin();
        loads.arrives_later = on_later;
        gate_init(&fake.prepare, false);
        load_start(&w, blocks_file("blocks", BLOCKS), "m");
        core_until(w.load->parts[0].built);
        core_settle();
        ck_assert_uint_eq(arrivals, 1);
}

static void end(void)
{
        gate_open(&fake.prepare);
        load_fixture_end();
}

/* Another tensor arrives, and the loop knows. */
static void arrive(void)
{
        unsigned before = arrivals + n_later;
        gate_pass_more(&fake.prepare, 1);
        core_until(arrivals + n_later > before);
}

static bool is_notified(void)
{
        return loads_notify_arrivals(&loads) == UINT64_MAX;
}

CORE_FIXTURE(begin, end);

TEST(the_first_tensor_is_notified_at_once_and_the_next_after_a_pause)
{
        struct generation *g = w.load->targets[0].generation;
        uint64_t since = now_ns();
        arrive();
        ck_assert_uint_eq(arrivals, 2);
        ck_assert_uint_eq(n_later, 0);
        g->n_leases = 100000; /* a long pause, which a slow machine does not exceed */
        arrive();
        ck_assert_uint_eq(arrivals, 2);
        ck_assert_uint_ge(notice_at, since + 10 * SECOND);
        ck_assert_uint_eq(loads_notify_arrivals(&loads), notice_at);
        g->n_leases = 0;
        AWAIT(is_notified());
        ck_assert_uint_eq(arrivals, 3);
        ck_assert_uint_ge(now_ns(), since + 20 * MS);
        ck_assert(is_notified());
        ck_assert_uint_eq(arrivals, 3);
}

TEST(what_arrives_during_a_pause_is_notified_together)
{
        struct generation *g = w.load->targets[0].generation;
        arrive();
        g->n_leases = 100000;
        arrive();
        gate_pass_more(&fake.prepare, 3);
        AWAIT(arrivals_count(&w.load->parts[0].arrivals) == 5);
        core_settle();
        ck_assert_uint_eq(arrivals, 2);
        ck_assert_uint_eq(n_later, 1);
        g->n_leases = 0;
        AWAIT(is_notified());
        ck_assert_uint_eq(arrivals, 3);
}

/* The end is notified by a change of the generation. */
TEST(nothing_is_notified_of_a_load_that_has_ended)
{
        arrive();
        w.load->targets[0].generation->n_leases = 100000;
        arrive();
        w.load->targets[0].generation->n_leases = 0;
        load_cancel(w.load);
        ck_assert_uint_eq(loads_notify_arrivals(&loads), UINT64_MAX);
        ck_assert_uint_eq(arrivals, 2);
}
