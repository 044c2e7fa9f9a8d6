/* SPDX-License-Identifier: Apache-2.0
 *
 * The timer heap: the next timer is first, whatever is added or removed.
 */
#include "tests/lib/suite.h"

#include "daemon/serve/conn/timer_heap.h"

#define MANY 300

static struct timer_heap deadlines;
static struct heap_timer many[MANY];

static void end(void)
{
        timer_heap_deinit(&deadlines);
}

static const struct heap_timer *earliest(void)
{
        const struct heap_timer *first = NULL;
        for (size_t i = 0; i < MANY; i++)
                if (many[i].place != 0 && (first == NULL || many[i].at_ns < first->at_ns))
                        first = &many[i];
        return first;
}

static void first_is_earliest(void)
{
        const struct heap_timer *first = timer_heap_first(&deadlines), *earliest_one = earliest();
        ck_assert((first == NULL) == (earliest_one == NULL));
        if (first != NULL)
                ck_assert_uint_eq(first->at_ns, earliest_one->at_ns);
}

START_TEST(an_empty_heap_has_no_timer)
{
        struct heap_timer nowhere = {0};
        ck_assert_ptr_null(timer_heap_first(&deadlines));
        timer_heap_remove(&deadlines, &nowhere);
        ck_assert_ptr_null(timer_heap_first(&deadlines));
}
END_TEST

START_TEST(the_next_timer_is_first_after_any_change)
{
        uint64_t chance = 20261122;
        for (int i = 0; i < 20000; i++) {
                struct heap_timer *d = &many[draw_below(&chance, MANY)];
                if (d->place != 0)
                        timer_heap_remove(&deadlines, d);
                else
                        ck_assert_int_eq(timer_heap_add(&deadlines, d, draw_below(&chance, 100)), 0);
                first_is_earliest();
        }
        for (uint64_t last = 0; timer_heap_first(&deadlines) != NULL;) {
                struct heap_timer *d = timer_heap_first(&deadlines);
                ck_assert_uint_ge(d->at_ns, last);
                last = d->at_ns;
                timer_heap_remove(&deadlines, d);
                ck_assert_uint_eq(d->place, 0);
        }
        ck_assert_ptr_null(earliest());
}
END_TEST

int main(void)
{
        suite_begin("timer heap");
        TCase *tests = suite_group("timers", NULL, end, 20);
        tcase_add_test(tests, an_empty_heap_has_no_timer);
        tcase_add_test(tests, the_next_timer_is_first_after_any_change);
        return suite_run();
}
