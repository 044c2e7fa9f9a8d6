/* SPDX-License-Identifier: Apache-2.0
 *
 * What is to happen at a time: whichever comes and goes, the next is first.
 */
#include "tests/lib/suite.h"

#include "daemon/serve/deadlines.h"

#define MANY 300

static struct deadlines deadlines;
static struct deadline many[MANY];

static void end(void)
{
        deadlines_deinit(&deadlines);
}

static const struct deadline *earliest(void)
{
        const struct deadline *first = NULL;
        for (size_t i = 0; i < MANY; i++)
                if (many[i].place != 0 && (first == NULL || many[i].at_ns < first->at_ns))
                        first = &many[i];
        return first;
}

static void first_is_earliest(void)
{
        const struct deadline *first = deadlines_first(&deadlines), *earliest_one = earliest();
        ck_assert((first == NULL) == (earliest_one == NULL));
        if (first != NULL)
                ck_assert_uint_eq(first->at_ns, earliest_one->at_ns);
}

START_TEST(there_is_none_at_first)
{
        struct deadline nowhere = {0};
        ck_assert_ptr_null(deadlines_first(&deadlines));
        deadlines_remove(&deadlines, &nowhere);
        ck_assert_ptr_null(deadlines_first(&deadlines));
}
END_TEST

START_TEST(the_next_is_first_whichever_comes_and_goes)
{
        uint64_t chance = 20261122;
        for (int i = 0; i < 20000; i++) {
                struct deadline *d = &many[draw_below(&chance, MANY)];
                if (d->place != 0)
                        deadlines_remove(&deadlines, d);
                else
                        ck_assert_int_eq(deadlines_add(&deadlines, d, draw_below(&chance, 100)), 0);
                first_is_earliest();
        }
        for (uint64_t last = 0; deadlines_first(&deadlines) != NULL;) {
                struct deadline *d = deadlines_first(&deadlines);
                ck_assert_uint_ge(d->at_ns, last);
                last = d->at_ns;
                deadlines_remove(&deadlines, d);
                ck_assert_uint_eq(d->place, 0);
        }
        ck_assert_ptr_null(earliest());
}
END_TEST

int main(void)
{
        suite_begin("deadlines");
        TCase *tests = suite_group("deadlines", NULL, end, 20);
        tcase_add_test(tests, there_is_none_at_first);
        tcase_add_test(tests, the_next_is_first_whichever_comes_and_goes);
        return suite_run();
}
