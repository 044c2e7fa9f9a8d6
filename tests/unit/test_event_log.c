/* SPDX-License-Identifier: Apache-2.0
 *
 * Events for subscribers: who receives which, in which order, and when they are freed.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/serve/events/event_log.h"

static struct event_log event_log;
static struct subscriber a, b, c;

static void begin_log(void)
{
        begin();
        event_log_init(&event_log);
}

static void end_log(void)
{
        event_log_deinit(&event_log);
        end();
}

static void change(struct generation *g, uint64_t bytes)
{
        g->data_bytes = bytes; /* identifies this change */
        ck_assert_int_eq(event_log_add(&event_log, g), 0);
}

/* The changes that the subscriber has not received, by their bytes: "1 2 3 ". */
static const char *read_events(struct subscriber *subscriber)
{
        static char text[1024];
        const struct model_event *event;
        size_t used = 0;
        text[0] = '\0';
        while ((event = event_log_next(&event_log, subscriber)) != NULL)
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%u ", (unsigned)event->bytes);
        return text;
}

START_TEST(each_subscriber_receives_each_event_once_in_order)
{
        struct generation *g = ready(loading("m"));
        event_log_subscribe(&event_log, &a);
        event_log_subscribe(&event_log, &b);
        change(g, 1);
        change(g, 2);
        ck_assert_str_eq(read_events(&a), "1 2 ");
        change(g, 3);
        ck_assert_str_eq(read_events(&b), "1 2 3 ");
        ck_assert_str_eq(read_events(&a), "3 ");
        ck_assert_str_eq(read_events(&a), "");
        ck_assert_ptr_null(event_log_next_subscriber(&event_log));
        event_log_unsubscribe(&event_log, &a);
        event_log_unsubscribe(&event_log, &b);
}
END_TEST

START_TEST(an_event_describes_the_state_when_it_was_queued)
{
        struct generation *g = ready(loading("m"));
        event_log_subscribe(&event_log, &a);
        change(g, 1);
        event_log.ends = 7;
        change(g, 2);
        ck_assert_uint_eq(event_log_peek(&event_log, &a)->ends, 0);
        ck_assert_ptr_eq(event_log_peek(&event_log, &a), event_log_next(&event_log, &a));
        ck_assert_uint_eq(event_log_peek(&event_log, &a)->ends, 7);
        ck_assert_str_eq(read_events(&a), "2 ");
        ck_assert_ptr_null(event_log_peek(&event_log, &a));
        ck_assert_ptr_null(event_log_peek(&event_log, &b)); /* it does not listen */
        event_log_unsubscribe(&event_log, &a);
}
END_TEST

START_TEST(a_new_subscriber_receives_later_events_only)
{
        struct generation *g = ready(loading("m"));
        change(g, 1);
        event_log_subscribe(&event_log, &a);
        change(g, 2);
        event_log_subscribe(&event_log, &b);
        change(g, 3);
        ck_assert_str_eq(read_events(&b), "3 ");
        ck_assert_str_eq(read_events(&a), "2 3 ");
        ck_assert_ptr_null(event_log_next(&event_log, &c));
        event_log_unsubscribe(&event_log, &a);
        event_log_unsubscribe(&event_log, &b);
        event_log_unsubscribe(&event_log, &c);
}
END_TEST

START_TEST(slow_subscribers_are_served_in_turn)
{
        struct generation *g = ready(loading("m"));
        struct subscriber *all[] = {&a, &b, &c};
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                event_log_subscribe(&event_log, all[i]);
        change(g, 1);
        change(g, 2);
        for (size_t i = 0; i < 2 * ARRAY_SIZE(all); i++) {
                ck_assert_ptr_eq(event_log_next_subscriber(&event_log), all[i % ARRAY_SIZE(all)]);
                ck_assert_uint_eq(event_log_next(&event_log, event_log_next_subscriber(&event_log))->bytes,
                                  1 + i / ARRAY_SIZE(all));
        }
        ck_assert_ptr_null(event_log_next_subscriber(&event_log));
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                event_log_unsubscribe(&event_log, all[i]);
}
END_TEST

START_TEST(an_event_is_freed_when_every_subscriber_has_received_it)
{
        struct generation *g = ready(loading("m"));
        event_log_subscribe(&event_log, &a);
        event_log_subscribe(&event_log, &b);
        for (unsigned i = 0; i < 100; i++)
                change(g, i);
        uint64_t all = event_log.bytes;
        read_events(&a);
        ck_assert_uint_eq(event_log.bytes, all);
        for (unsigned i = 0; i < 50; i++)
                event_log_next(&event_log, &b);
        ck_assert_uint_lt(event_log.bytes, all / 10 * 6);
        event_log_unsubscribe(&event_log, &b);
        ck_assert_uint_eq(event_log.bytes, all / 100);
        event_log_unsubscribe(&event_log, &a);
}
END_TEST

START_TEST(a_removed_subscriber_does_not_affect_the_others)
{
        struct generation *g = ready(loading("m"));
        event_log_subscribe(&event_log, &a);
        event_log_subscribe(&event_log, &b);
        change(g, 1);
        change(g, 2);
        event_log_next(&event_log, &a);
        event_log_unsubscribe(&event_log, &a);
        ck_assert_str_eq(read_events(&b), "1 2 ");
        event_log_unsubscribe(&event_log, &b);
        change(g, 3); /* to no subscriber */
        event_log_subscribe(&event_log, &a);
        ck_assert_str_eq(read_events(&a), "");
        event_log_unsubscribe(&event_log, &a);
}
END_TEST

START_TEST(an_event_has_the_state_at_its_time)
{
        struct generation *g = loading("m");
        event_log_subscribe(&event_log, &a);
        ck_assert_int_eq(generation_add_name(g, "other", g->source, 0, NULL), 0);
        change(g, 1);
        uint64_t number = g->number;
        failed(g, "why");
        change(g, 2);
        generation_drop_name(g, "other");
        generation_drop_name(g, "m"); /* it is freed */
        const struct model_event *event = event_log_next(&event_log, &a);
        ck_assert_str_eq(event->state, "loading");
        ck_assert_str_eq(event->names, "m");
        ck_assert(model_event_concerns(event, "m") && model_event_concerns(event, "other") &&
                  model_event_concerns(event, NULL));
        ck_assert(!model_event_concerns(event, "othe") && !model_event_concerns(event, "others") &&
                  !model_event_concerns(event, ""));
        ck_assert_int_eq(event->code, 0);
        event = event_log_next(&event_log, &a);
        ck_assert_str_eq(event->state, "failed");
        ck_assert_uint_eq(event->number, number);
        ck_assert_int_eq(event->code, STREAMER_EFAILED);
        ck_assert_str_eq(event->text, "why");
        event_log_unsubscribe(&event_log, &a);
}
END_TEST

START_TEST(only_the_damaged_name_is_lost)
{
        struct generation *g = loading_with("m", 4096);
        ck_assert_int_eq(generation_add_name(g, "other", g->source, 0, NULL), 0);
        ready(g);
        event_log_subscribe(&event_log, &a);
        generation_drop_name(g, "m");
        g->lost_name = true;
        change(g, 1);
        g->lost_name = false;
        const struct model_event *event = event_log_next(&event_log, &a);
        ck_assert_str_eq(event->state, "unloaded");
        ck_assert(model_event_concerns(event, "m") && !model_event_concerns(event, "other"));
        event_log_unsubscribe(&event_log, &a);
}
END_TEST

int main(void)
{
        suite_begin("event log");
        TCase *tests = core_group("news", begin_log, end_log);
        tcase_add_test(tests, each_subscriber_receives_each_event_once_in_order);
        tcase_add_test(tests, an_event_describes_the_state_when_it_was_queued);
        tcase_add_test(tests, a_new_subscriber_receives_later_events_only);
        tcase_add_test(tests, slow_subscribers_are_served_in_turn);
        tcase_add_test(tests, an_event_is_freed_when_every_subscriber_has_received_it);
        tcase_add_test(tests, a_removed_subscriber_does_not_affect_the_others);
        tcase_add_test(tests, an_event_has_the_state_at_its_time);
        tcase_add_test(tests, only_the_damaged_name_is_lost);
        return suite_run();
}
