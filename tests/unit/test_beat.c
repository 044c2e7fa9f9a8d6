/* SPDX-License-Identifier: Apache-2.0
 *
 * A crowd that is told something again and again: each once a beat, whoever comes and goes meanwhile.
 */
#include "tests/lib/suite.h"

#include "daemon/serve/beat.h"

#define CROWD 5

static struct beat beat;
static struct beat_member crowd[CROWD];

static void begin(void)
{
        beat_init(&beat);
        for (size_t i = 0; i < CROWD; i++)
                beat_join(&beat, &crowd[i]);
}

static void told(size_t first, size_t n)
{
        for (size_t i = 0; i < n; i++)
                ck_assert_ptr_eq(beat_next(&beat), &crowd[first + i]);
}

START_TEST(each_is_told_once_a_beat)
{
        ck_assert_ptr_null(beat_next(&beat)); /* none has begun */
        for (int i = 0; i < 3; i++) {
                ck_assert(beat_begin(&beat));
                told(0, CROWD);
                ck_assert_ptr_null(beat_next(&beat));
        }
}
END_TEST

START_TEST(a_beat_that_is_not_over_goes_on)
{
        ck_assert(beat_begin(&beat));
        told(0, 2);
        ck_assert(!beat_begin(&beat));
        told(2, CROWD - 2);
        ck_assert_ptr_null(beat_next(&beat));
        ck_assert(beat_begin(&beat));
        told(0, CROWD);
}
END_TEST

START_TEST(who_comes_during_a_beat_is_told_from_the_next_on)
{
        struct beat_member late;
        ck_assert(beat_begin(&beat));
        told(0, 2);
        beat_join(&beat, &late);
        told(2, CROWD - 2);
        ck_assert_ptr_null(beat_next(&beat));
        ck_assert(beat_begin(&beat));
        told(0, 2);
        ck_assert_ptr_eq(beat_next(&beat), &late); /* it came behind those two */
        told(2, CROWD - 2);
        ck_assert_ptr_null(beat_next(&beat));
}
END_TEST

START_TEST(who_leaves_is_not_told_and_keeps_nobody)
{
        ck_assert(beat_begin(&beat));
        told(0, 1);
        for (size_t i = 1; i < CROWD; i++)
                list_remove(&crowd[i].link);
        ck_assert_ptr_null(beat_next(&beat));
        ck_assert(beat_begin(&beat));
        told(0, 1);
        list_remove(&crowd[0].link);
        ck_assert(!beat_begin(&beat));
        ck_assert_ptr_null(beat_next(&beat));
}
END_TEST

int main(void)
{
        suite_begin("beat");
        TCase *tests = suite_group("beats", begin, NULL, 10);
        tcase_add_test(tests, each_is_told_once_a_beat);
        tcase_add_test(tests, a_beat_that_is_not_over_goes_on);
        tcase_add_test(tests, who_comes_during_a_beat_is_told_from_the_next_on);
        tcase_add_test(tests, who_leaves_is_not_told_and_keeps_nobody);
        return suite_run();
}
