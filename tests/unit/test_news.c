/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes that not all who listen have heard of: who hears of which, in which order, and how long they are kept.
 */
#include "tests/unit/resident_stage.h"

#include "daemon/serve/news.h"

static struct news news;
static struct listener a, b, c;

static void begin_news(void)
{
        begin();
        news_init(&news);
}

static void end_news(void)
{
        news_deinit(&news);
        end();
}

static void change(struct generation *g, uint64_t bytes)
{
        g->data_bytes = bytes; /* tells this change from others */
        ck_assert_int_eq(news_add(&news, g), 0);
}

/* The changes that are left for it, by their bytes: "1 2 3 ". */
static const char *heard(struct listener *listener)
{
        static char text[1024];
        const struct item *item;
        size_t used = 0;
        text[0] = '\0';
        while ((item = news_next(&news, listener)) != NULL)
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%u ", (unsigned)item->bytes);
        return text;
}

START_TEST(each_hears_of_each_change_once_in_order)
{
        struct generation *g = ready(loading("m"));
        news_join(&news, &a);
        news_join(&news, &b);
        change(g, 1);
        change(g, 2);
        ck_assert_str_eq(heard(&a), "1 2 ");
        change(g, 3);
        ck_assert_str_eq(heard(&b), "1 2 3 ");
        ck_assert_str_eq(heard(&a), "3 ");
        ck_assert_str_eq(heard(&a), "");
        ck_assert_ptr_null(news_behind(&news));
        news_leave(&news, &a);
        news_leave(&news, &b);
}
END_TEST

START_TEST(a_change_tells_what_else_had_happened_by_then)
{
        struct generation *g = ready(loading("m"));
        news_join(&news, &a);
        change(g, 1);
        news.ends = 7;
        change(g, 2);
        ck_assert_uint_eq(news_peek(&news, &a)->ends, 0);
        ck_assert_ptr_eq(news_peek(&news, &a), news_next(&news, &a));
        ck_assert_uint_eq(news_peek(&news, &a)->ends, 7);
        ck_assert_str_eq(heard(&a), "2 ");
        ck_assert_ptr_null(news_peek(&news, &a));
        ck_assert_ptr_null(news_peek(&news, &b)); /* it does not listen */
        news_leave(&news, &a);
}
END_TEST

START_TEST(who_comes_later_hears_of_what_comes_later)
{
        struct generation *g = ready(loading("m"));
        change(g, 1);
        news_join(&news, &a);
        change(g, 2);
        news_join(&news, &b);
        change(g, 3);
        ck_assert_str_eq(heard(&b), "3 ");
        ck_assert_str_eq(heard(&a), "2 3 ");
        ck_assert_ptr_null(news_next(&news, &c));
        news_leave(&news, &a);
        news_leave(&news, &b);
        news_leave(&news, &c);
}
END_TEST

START_TEST(those_who_are_behind_take_turns)
{
        struct generation *g = ready(loading("m"));
        struct listener *all[] = {&a, &b, &c};
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                news_join(&news, all[i]);
        change(g, 1);
        change(g, 2);
        for (size_t i = 0; i < 2 * ARRAY_SIZE(all); i++) {
                ck_assert_ptr_eq(news_behind(&news), all[i % ARRAY_SIZE(all)]);
                ck_assert_uint_eq(news_next(&news, news_behind(&news))->bytes, 1 + i / ARRAY_SIZE(all));
        }
        ck_assert_ptr_null(news_behind(&news));
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                news_leave(&news, all[i]);
}
END_TEST

START_TEST(a_change_goes_when_the_last_has_heard_of_a_later_one)
{
        struct generation *g = ready(loading("m"));
        news_join(&news, &a);
        news_join(&news, &b);
        for (unsigned i = 0; i < 100; i++)
                change(g, i);
        uint64_t all = news.bytes;
        heard(&a);
        ck_assert_uint_eq(news.bytes, all);
        for (unsigned i = 0; i < 50; i++)
                news_next(&news, &b);
        ck_assert_uint_lt(news.bytes, all / 10 * 6);
        news_leave(&news, &b);
        ck_assert_uint_eq(news.bytes, all / 100);
        news_leave(&news, &a);
}
END_TEST

START_TEST(who_goes_leaves_the_others_theirs)
{
        struct generation *g = ready(loading("m"));
        news_join(&news, &a);
        news_join(&news, &b);
        change(g, 1);
        change(g, 2);
        news_next(&news, &a);
        news_leave(&news, &a);
        ck_assert_str_eq(heard(&b), "1 2 ");
        news_leave(&news, &b);
        change(g, 3); /* to nobody */
        news_join(&news, &a);
        ck_assert_str_eq(heard(&a), "");
        news_leave(&news, &a);
}
END_TEST

START_TEST(a_change_is_told_as_it_was)
{
        struct generation *g = loading("m");
        news_join(&news, &a);
        ck_assert_int_eq(generation_add_name(g, "other", 0, NULL), 0);
        change(g, 1);
        uint64_t number = g->number;
        failed(g, "why");
        change(g, 2);
        generation_drop_name(g, "other");
        generation_drop_name(g, "m"); /* it is no more */
        const struct item *item = news_next(&news, &a);
        ck_assert_str_eq(item->state, "loading");
        ck_assert_str_eq(item->names, "m");
        ck_assert(item_concerns(item, "m") && item_concerns(item, "other") && item_concerns(item, NULL));
        ck_assert(!item_concerns(item, "othe") && !item_concerns(item, "others") && !item_concerns(item, ""));
        ck_assert_int_eq(item->code, 0);
        item = news_next(&news, &a);
        ck_assert_str_eq(item->state, "failed");
        ck_assert_uint_eq(item->number, number);
        ck_assert_int_eq(item->code, STREAMER_EFAILED);
        ck_assert_str_eq(item->text, "why");
        news_leave(&news, &a);
}
END_TEST

START_TEST(a_name_that_was_lost_is_gone_and_no_other)
{
        struct generation *g = loading_with("m", 4096);
        ck_assert_int_eq(generation_add_name(g, "other", 0, NULL), 0);
        ready(g);
        news_join(&news, &a);
        generation_drop_name(g, "m");
        g->lost_name = true;
        change(g, 1);
        g->lost_name = false;
        const struct item *item = news_next(&news, &a);
        ck_assert_str_eq(item->state, "gone");
        ck_assert(item_concerns(item, "m") && !item_concerns(item, "other"));
        news_leave(&news, &a);
}
END_TEST

int main(void)
{
        suite_begin("news");
        TCase *tests = core_group("news", begin_news, end_news);
        tcase_add_test(tests, each_hears_of_each_change_once_in_order);
        tcase_add_test(tests, a_change_tells_what_else_had_happened_by_then);
        tcase_add_test(tests, who_comes_later_hears_of_what_comes_later);
        tcase_add_test(tests, those_who_are_behind_take_turns);
        tcase_add_test(tests, a_change_goes_when_the_last_has_heard_of_a_later_one);
        tcase_add_test(tests, who_goes_leaves_the_others_theirs);
        tcase_add_test(tests, a_change_is_told_as_it_was);
        tcase_add_test(tests, a_name_that_was_lost_is_gone_and_no_other);
        return suite_run();
}
